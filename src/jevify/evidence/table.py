"""Tables of a result, as Markdown or for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as Grid
from rich.text import Text

UNKNOWN = "-"


@dataclass(frozen=True)
class Table:
    """Rows of cells under `headings`: the case (empty where it is that of the row above), a name, then figures.

    parts: the columns of each table on a terminal, where all in one would be too wide; all of them when empty.
    """

    headings: tuple[str, ...]
    rows: list[list[str]]
    parts: tuple[range, ...] = ()

    def markdown(self) -> list[str]:
        """The table's lines in Markdown."""
        rule = ["---"] * 2 + ["---:"] * (len(self.headings) - 2)
        return [_markdown_row(row) for row in (self.headings, rule, *self.rows)]

    def grids(self) -> list[Grid]:
        """The table for a terminal, one grid for each of the parts."""
        return [self._grid(columns) for columns in self.parts or (range(2, len(self.headings)),)]

    def _grid(self, columns: range) -> Grid:
        grid = Grid(box=box.SIMPLE_HEAD)
        grid.add_column(self.headings[1], no_wrap=True)
        for column in columns:
            grid.add_column(self.headings[column], justify="right", no_wrap=True)
        for row in self.rows:
            if row[0]:
                grid.add_section()
                grid.add_row(Text(row[0], style="bold"))
            grid.add_row(Text(row[1]), *(Text(row[column]) for column in columns))
        return grid


def figure(value: float | None, form: str = ".1f") -> str:
    """A number as told, or the sign that there is none."""
    return UNKNOWN if value is None else format(value, form)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
