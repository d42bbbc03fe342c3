"""The rows of a bulk run on stderr: a bar with rate and time left on a terminal, a line every tenth elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from jevify.bulk.run import Watcher
from jevify.cli.render import visible


class LineRows:
    """One line for each tenth of the rows."""

    def __init__(self, begun: int, total: int) -> None:
        self._begun, self._total = begun, total
        self._tenth = self._tenths(begun)
        self._began = monotonic()

    def done(self, row: int) -> None:
        """Print a line when another tenth is over."""
        tenth = self._tenths(row)
        if tenth == self._tenth:
            return
        self._tenth = tenth
        rate = (row - self._begun) / max(1e-9, monotonic() - self._began)
        left = (self._total - row) / rate
        print(f"{row:,} of {self._total:,} rows, {rate:,.1f} rows/s, {_span(left)} left", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Print the text."""
        print(f"jevify: {visible(text)}", file=sys.stderr, flush=True)

    def _tenths(self, row: int) -> int:
        return 10 * row // max(1, self._total)


class BarRows:
    """A bar of `bars`."""

    def __init__(self, bars: Progress, begun: int, total: int) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=total, completed=begun)

    def done(self, row: int) -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=row)

    def note(self, text: str) -> None:
        """Print the text above the bar."""
        self._bars.console.print(f"jevify: {visible(text)}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def watching_rows(begun: int, total: int) -> Iterator[Watcher]:
    """A `Watcher` for a run that goes on behind row `begun` of `total`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineRows(begun, total)
        return
    with Progress(BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(), console=console) as bars:
        yield BarRows(bars, begun, total)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.1f} rows/s")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
