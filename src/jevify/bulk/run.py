"""The run itself: groups of rows go through the engine, and one row's failure is its own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, Protocol

from jevify.bulk.journal import Journal
from jevify.bulk.rows import Asked, Place, Row, RowReader, Source, id_of, reason_of
from jevify.errors import InputError, JevifyError

MOST_ROWS = 1_024
"""Rows of a group, whatever their tokens."""

MOST_FAILURES = 3
"""Rows in a row that the engine may fail on; then the fault is hardly theirs."""

COMMIT_SECONDS = 1.0
"""What a killed run may lose and decide again."""

Mode = Literal["parallel", "independent"]


class Decides(Protocol):
    """What a run needs of an engine."""

    def measure(self, context: Any, questions: Any) -> tuple[int, list[int]]:
        """Shared tokens, and the tokens of each full question. Raises InputError for what cannot be decided."""

    def decide_many(self, requests: Sequence[tuple[Any, Any]], *, mode: Mode) -> Sequence[Any]:
        """A decision for each request, in order."""


class Watcher(Protocol):
    """Whoever watches a run."""

    def done(self, row: int) -> None:
        """All rows up to this number are decided or set aside."""

    def note(self, text: str) -> None:
        """Something the user should read once."""


@dataclass(frozen=True)
class Entry:
    """A row on its way: what it asks and costs in tokens, or why it is set aside."""

    row: Row
    asked: Asked | None
    tokens: int = 0
    reason: str = ""


@dataclass
class Outcome:
    """What this run did, earlier ones of the same output not counted. `by_row`: groups decided row by row."""

    decided: int = 0
    set_aside: int = 0
    tokens: int = 0
    seconds: float = 0.0
    by_row: int = 0
    interrupted: bool = False


@dataclass
class Run:
    """Decides the rows of a source and writes them into a journal.

    batch_tokens: tokens of the rows decided together; a row of more is alone. stopped: asked before each group whether
    to leave the rest for later.
    """

    engine: Decides
    reader: RowReader
    journal: Journal
    batch_tokens: int
    mode: Mode
    watcher: Watcher
    stopped: Callable[[], bool]
    outcome: Outcome = field(default_factory=Outcome)
    _failures: int = 0
    _committed: float = 0.0

    def __call__(self, source: Source) -> Outcome:
        """Decide every row that is left.

        A row that cannot be decided is set aside. Raises JevifyError when the engine fails on MOST_FAILURES rows in a
        row, or the disk takes no more: what was decided before is kept, and those rows are left for later.
        """
        began = self._committed = monotonic()
        state = self.journal.state
        for group in self._groups(source.rows(Place(state.row, state.offset))):
            if self.stopped():
                self.outcome.interrupted = True
                break
            self._decide(group)
            self.watcher.done(group[-1].row.number)
            if not self._failures and monotonic() - self._committed >= COMMIT_SECONDS:
                self._commit()
        self._commit()
        self.outcome.seconds = monotonic() - began
        return self.outcome

    def _groups(self, rows: Iterator[Row]) -> Iterator[list[Entry]]:
        """Rows in order, as many together as the budget takes; of the next group only its first row is read."""
        group: list[Entry] = []
        tokens = 0
        for row in rows:
            entry = self._entry(row)
            if group and (tokens + entry.tokens > self.batch_tokens or len(group) == MOST_ROWS):
                yield group
                group, tokens = [], 0
            group.append(entry)
            tokens += entry.tokens
        if group:
            yield group

    def _entry(self, row: Row) -> Entry:
        try:
            asked = self.reader.read(row)
            shared, full = self.engine.measure(asked.context, asked.workflow)
        except InputError as error:
            return Entry(row, None, reason=reason_of(error, row.number))
        return Entry(row, asked, shared + sum(tokens - shared for tokens in full))

    def _decide(self, group: Sequence[Entry]) -> None:
        asked = [(entry.asked.context, entry.asked.workflow) for entry in group if entry.asked]
        decisions: Iterator[Any] | None = None
        try:
            decisions = iter(self.engine.decide_many(asked, mode=self.mode) if asked else ())
        except Exception as error:
            self._tell(group, reason_of(error, 0))
        # Not in the handler, where the error would keep alive what the failed pass held on the device.
        if decisions is None:
            self._decide_each(group)
            return
        if asked:
            self._failures = 0
        for entry in group:
            if entry.asked:
                self._answered(entry, entry.asked, next(decisions))
            else:
                self._set_aside(entry, entry.reason)

    def _decide_each(self, group: Sequence[Entry]) -> None:
        for entry in group:
            if entry.asked is None:
                self._set_aside(entry, entry.reason)
                continue
            reason = None
            try:
                [decision] = self.engine.decide_many([(entry.asked.context, entry.asked.workflow)], mode=self.mode)
            except Exception as error:
                reason = reason_of(error, entry.row.number)
            if reason is not None:
                self._failed(entry, reason)
                continue
            self._failures = 0
            self._answered(entry, entry.asked, decision)

    def _tell(self, group: Sequence[Entry], reason: str) -> None:
        self.outcome.by_row += 1
        if self.outcome.by_row == 1:
            self.watcher.note(
                f"rows {group[0].row.number} to {group[-1].row.number} failed together and are decided one by one "
                f"({reason}); later groups that do the same are only counted"
            )

    def _failed(self, entry: Entry, reason: str) -> None:
        if not self._failures:
            # So that a run which stops for good begins again with this row.
            self._commit()
        self._failures += 1
        if self._failures == MOST_FAILURES:
            raise JevifyError(
                f"row {entry.row.number}: {reason}\nthe engine failed on {MOST_FAILURES} rows in a row, and the run "
                f"stops after row {self.journal.state.row:,}: mend the cause and go on with --resume"
            )
        self._set_aside(entry, reason)

    def _answered(self, entry: Entry, asked: Asked, decision: Any) -> None:
        self.outcome.decided += 1
        self.outcome.tokens += entry.tokens
        self.journal.answer(entry.row.after, record_of(entry.row.number, asked.id, decision))

    def _set_aside(self, entry: Entry, reason: str) -> None:
        self.outcome.set_aside += 1
        name = entry.asked.id if entry.asked else id_of(entry.row)
        named = {} if name is None else {"id": name}
        self.journal.reject(entry.row.after, {"row": entry.row.number, **named, "reason": reason})

    def _commit(self) -> None:
        self.journal.commit()
        self._committed = monotonic()


def record_of(row: int, name: str | int | None, decision: Any) -> dict[str, Any]:
    """A row of the output: its number, its id if it has one, the answers, and the questions that were near ties.

    near_ties is null while the drift that makes a near tie is unknown.
    """
    judged = decision["metadata"]["questions"]
    unknown = any(entry["near_tie"] == "unknown" for entry in judged.values())
    ties = None if unknown else [question for question, entry in judged.items() if entry["near_tie"]]
    named = {} if name is None else {"id": name}
    return {"row": row, **named, "answers": decision["answers"], "near_ties": ties}
