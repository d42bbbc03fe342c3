"""Stages of a long job on stderr: a bar on a terminal, one plain line a stage elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column

from jevify.models.progress import Progress


class LineProgress:
    """One line for each stage and note."""

    def stage(self, title: str, total: int | None) -> None:
        """Print the title."""
        print(title, file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        """Print nothing."""

    def note(self, text: str) -> None:
        """Print the text."""
        print(text, file=sys.stderr, flush=True)


class BarProgress:
    """A bar for each stage of known size; a line for the others, which may write to the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._task = TaskID(0)

    def stage(self, title: str, total: int | None) -> None:
        """Leave the bar of the stage before as it stands and begin the next."""
        self.close()
        if total is None:
            self.note(title)
            return
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            DownloadColumn(table_column=Column(no_wrap=True)),
            console=self._console,
        )
        self._task = self._bars.add_task(title, total=total)
        self._bars.start()

    def advance(self, count: int) -> None:
        """Move the current bar."""
        if self._bars is not None:
            self._bars.advance(self._task, count)

    def note(self, text: str) -> None:
        """Print the text above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """End the current bar, so that the terminal is free for others."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


@contextmanager
def stderr_progress() -> Iterator[Progress]:
    """A `Progress` that writes to stderr in the way that stderr can show."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineProgress()
        return
    bars = BarProgress(console)
    try:
        yield bars
    finally:
        bars.close()
