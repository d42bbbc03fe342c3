"""Continuous batching: many callers that wait, one thread that runs the engine. Knows no HTTP.

A lone request runs at once. What arrives while a batch runs waits, and goes together in the next one.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jevify.decide.compile import CompiledRequest
from jevify.decide.decision import Decision
from jevify.serve.limits import ServeLimits
from jevify.serve.rate import ServiceRate
from jevify.serve.waiting import Ticket, WaitingRoom

# Told to a client while no rate has been measured, and the least that is ever told.
UNKNOWN_RETRY_MS, LEAST_RETRY_MS = 1_000, 20

# How long stopping waits for a batch whose callers have all left.
LAST_BATCH_SECONDS = 2.0

# The share of its time that a request may be expected to take: the rate falls when more is asked, and an answer that
# comes too late was computed for nothing.
DEADLINE_SHARE = 0.75

# The share of the deadline that one batch may be expected to take, so that a slow engine makes small batches.
BATCH_SHARE = 0.25

# Runs without one success after which the engine counts as failing; one request that breaks alone is not enough.
FAILING_AFTER = 8


class Overloaded(Exception):
    """The request cannot be taken now. `reason`: queue_requests, queue_tokens or deadline."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        super().__init__(reason)
        self.reason, self.retry_after_ms = reason, retry_after_ms


class Late(Exception):
    """The request was taken and its deadline passed before its answer came."""


class Engine(Protocol):
    """What the batcher needs of a DecisionEngine."""

    def decide_prepared(self, requests: Sequence[CompiledRequest]) -> list[Decision]:
        """Answers in order."""
        ...

    def counters(self) -> Mapping[str, Any]:
        """Cumulative counters."""
        ...


class Observer(Protocol):
    """Is told what happens, from the engine's thread."""

    def ran(self, requests: int, tokens: int, seconds: float) -> None:
        """A batch was answered."""
        ...

    def failed(self, error: Exception, requests: int) -> None:
        """A batch raised; one of several is tried again, request by request."""
        ...


@dataclass(frozen=True)
class Answered:
    """A decision, how long it waited and ran, in seconds, and how many requests ran together."""

    decision: Decision
    queued: float
    computed: float
    batch: int


class Batcher:
    """Gives requests to the engine in batches, and each answer to the one who asked.

    together: whether the engine answers a batch in one pass. Otherwise the requests of a batch run one after another,
    the smallest first, and none waits for the others' answers.
    """

    def __init__(self, engine: Engine, limits: ServeLimits, observer: Observer, *, together: bool) -> None:
        self._engine, self._limits, self._observer, self._together = engine, limits, observer, together
        self.rate = ServiceRate()
        self.room = WaitingRoom(batch_tokens=self._batch_tokens, batch_requests=limits.batch_requests)
        self.engine_counters: Mapping[str, Any] = {}
        """The engine's counters as of its last batch; asking the engine itself would wait for its lock."""
        self._taken_tokens = 0
        self._begun: float | None = None
        self._failures = self._callers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="jevify-engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread; answers go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Take no more, and return when nobody waits for an answer.

        A batch that runs for nobody gets a moment to end; a wedged engine would never.
        """
        self.room.close()
        while self._callers and self._thread.is_alive():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._thread.join, LAST_BATCH_SECONDS)

    @property
    def wedged(self) -> bool:
        """Whether one run has taken longer than the limit, or the thread has died."""
        begun = self._begun
        stalled = begun is not None and time.monotonic() - begun > self._limits.stall_ms / 1e3
        return stalled or (self._thread.ident is not None and not self._thread.is_alive())

    @property
    def failing(self) -> bool:
        """Whether the last runs all failed."""
        return self._failures >= FAILING_AFTER

    def check_room(self, tokens: int, deadline: float, preparing: int = 0) -> None:
        """Raise Overloaded when a request of `tokens` cannot be taken now, or not be answered before `deadline`.

        preparing: requests that are not in the queue yet, and will be.
        """
        room, limits = self.room, self._limits
        if room.requests + preparing >= limits.queue_requests:
            raise Overloaded("queue_requests", self.retry_after_ms())
        if room.requests and room.tokens + tokens > limits.queue_tokens:
            raise Overloaded("queue_tokens", self.retry_after_ms())
        ahead = room.tokens + self._taken_tokens
        # Its answer comes with the last of its batch, which those behind it may fill.
        expected = self.rate.seconds(ahead + max(tokens, self._batch_tokens() if self._together else 0))
        # With nothing ahead it is tried: a rate measured on other requests may be wrong about it.
        if ahead and expected is not None and expected > DEADLINE_SHARE * (deadline - time.monotonic()):
            raise Overloaded("deadline", self.retry_after_ms())

    def retry_after_ms(self) -> int:
        """When to come again: the time in which the engine does half of what is waiting."""
        wait = self.rate.seconds(self._taken_tokens + self.room.tokens / 2)
        return UNKNOWN_RETRY_MS if wait is None else max(LEAST_RETRY_MS, math.ceil(wait * 1e3))

    async def submit(self, request: CompiledRequest, deadline: float) -> Answered:
        """The answer to `request`, before `deadline` of `time.monotonic`.

        Raises Overloaded without queueing, Late, and whatever the engine raised for this request alone. When the caller
        is cancelled, a request that does not run yet never will.
        """
        self.check_room(request.plan.tokens, deadline)
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        ticket = Ticket(request, deadline, future, time.monotonic())
        self.room.add(ticket)
        self._callers += 1
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await future
        except TimeoutError:
            raise Late from None
        finally:
            self._callers -= 1
            self.room.drop(ticket)

    def _batch_tokens(self) -> int:
        fit = self.rate.tokens(BATCH_SHARE * self._limits.deadline_ms / 1e3)
        return self._limits.batch_tokens if fit is None else max(1, min(self._limits.batch_tokens, int(fit)))

    def _work(self) -> None:
        while (batch := self.room.take()) is not None:
            self._taken_tokens = _tokens(batch)
            if self._together:
                self._run(batch)
            else:
                self._run_each(sorted(batch, key=lambda one: one.tokens))

    def _run_each(self, batch: list[Ticket]) -> None:
        for ticket in batch:
            if ticket.live:
                self._run([ticket])
            else:
                self._taken_tokens -= ticket.tokens

    def _run(self, batch: list[Ticket]) -> None:
        self._begun = begun = time.monotonic()
        try:
            decisions = self._engine.decide_prepared([ticket.request for ticket in batch])
        except Exception as error:
            self._begun = None
            self._failures += 1
            self._observer.failed(error, len(batch))
            if len(batch) == 1:
                self._deliver([(batch[0], error)])
                return
        else:
            self._begun = None
            self._failures = 0
            self._answer(batch, decisions, begun, time.monotonic() - begun)
            return
        # Outside the handler, where the error no longer keeps the memory of the failed pass.
        self._run_each(batch)

    def _answer(self, batch: list[Ticket], decisions: list[Decision], begun: float, seconds: float) -> None:
        tokens = _tokens(batch)
        self.rate.observe(tokens, seconds)
        self._observer.ran(len(batch), tokens, seconds)
        self.engine_counters = self._engine.counters()
        self._deliver(
            [
                (ticket, Answered(decision, begun - ticket.arrived, seconds, len(batch)))
                for ticket, decision in zip(batch, decisions, strict=True)
            ]
        )

    def _deliver(self, outcomes: list[tuple[Ticket, Answered | Exception]]) -> None:
        assert self._loop is not None
        # Before the answers go out: who asks again at once must not find himself ahead.
        self._taken_tokens -= _tokens([ticket for ticket, _ in outcomes])
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(_settle, outcomes)


def _tokens(batch: list[Ticket]) -> int:
    return sum(ticket.tokens for ticket in batch)


def _settle(outcomes: list[tuple[Ticket, Answered | Exception]]) -> None:
    for ticket, outcome in outcomes:
        if ticket.handle.done():
            continue
        if isinstance(outcome, Exception):
            ticket.handle.set_exception(outcome)
        else:
            ticket.handle.set_result(outcome)
