"""Requests that wait for the engine, and which of them go together."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jevify.decide.compile import CompiledRequest

# A request of at most this share of a batch is small; what larger ones may not take of a batch is kept for small ones.
SMALL, RESERVE = 1 / 8, 1 / 4


@dataclass(eq=False)
class Ticket:
    """A request in the queue. Times are of `time.monotonic`; `handle` is its owner's own."""

    request: CompiledRequest
    deadline: float
    handle: Any
    arrived: float
    dropped: bool = False

    @property
    def tokens(self) -> int:
        """What it takes of a batch."""
        return self.request.plan.tokens

    @property
    def live(self) -> bool:
        """Whether anyone still waits for it."""
        return not self.dropped and time.monotonic() < self.deadline


def pick(waiting: Iterable[Ticket], *, tokens: int, requests: int) -> list[Ticket]:
    """The tickets of the next batch, from those waiting, of which there is one at least, oldest first.

    The oldest always goes, so that nothing starves, whatever its size. The others join in order where they fit. Beside
    what larger requests fill, a quarter of the budget is for small ones alone, so that a row of large requests does not
    hold up a small one behind it: it goes with the next batch. Deficit counters would need a class for each client,
    which a server of one model does not know.
    """
    ordered = iter(waiting)
    oldest = next(ordered)
    chosen, passed, used = [oldest], [], oldest.tokens
    reserve, small = int(tokens * RESERVE), int(tokens * SMALL)
    bound = max(tokens, oldest.tokens + reserve)
    for ticket in ordered:
        if len(chosen) == requests or used == bound:
            break
        if used + ticket.tokens <= (bound if ticket.tokens <= small else tokens - reserve):
            chosen.append(ticket)
            used += ticket.tokens
        else:
            passed.append(ticket)
    # What no small one took of the reserve goes to the others after all.
    for ticket in passed:
        if len(chosen) < requests and used + ticket.tokens <= tokens:
            chosen.append(ticket)
            used += ticket.tokens
    return chosen


class WaitingRoom:
    """The queue between the threads that bring requests and the one that runs them. Safe to use from any thread.

    batch_tokens: asked for every batch, since what fits depends on how fast the engine is.
    """

    def __init__(self, *, batch_tokens: Callable[[], int], batch_requests: int) -> None:
        self._batch_tokens, self._batch_requests = batch_tokens, batch_requests
        # Insertion order is age, and any ticket can leave at once.
        self._waiting: dict[Ticket, None] = {}
        self._tokens = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def requests(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """How many tokens wait."""
        return self._tokens

    def add(self, ticket: Ticket) -> None:
        """Let a ticket wait. Raises RuntimeError when the room is closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the room is closed")
            self._waiting[ticket] = None
            self._tokens += ticket.tokens
            self._changed.notify()

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more: it will not run unless it does already."""
        ticket.dropped = True
        with self._changed:
            self._remove(ticket)

    def take(self) -> list[Ticket] | None:
        """The next batch, as soon as there is one; None when the room is closed and empty.

        Tickets past their deadline leave without running.
        """
        with self._changed:
            while True:
                for ticket in [one for one in self._waiting if not one.live]:
                    self._remove(ticket)
                if self._waiting:
                    batch = pick(self._waiting, tokens=self._batch_tokens(), requests=self._batch_requests)
                    for ticket in batch:
                        self._remove(ticket)
                    return batch
                if self._closed:
                    return None
                self._changed.wait()

    def close(self) -> None:
        """Take no more; what waits can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _remove(self, ticket: Ticket) -> None:
        if ticket in self._waiting:
            del self._waiting[ticket]
            self._tokens -= ticket.tokens
