"""Horizontal rows of bars or strips, grouped by case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.evidence.plots.style import INK, ROW, new_figure

Row = Mapping[str, Any]
_FRAME = 0.8


@dataclass(frozen=True)
class Placed:
    """A row of a result at its height `y`; rows go down from 0."""

    y: float
    row: Row


def grouped(groups: Sequence[tuple[str, Sequence[Row]]]) -> tuple[Any, Any, list[Placed]]:
    """A figure, its axes with a line for each row under the name of its group, and the rows where they are."""
    placed: list[Placed] = []
    names: list[tuple[float, str]] = []
    y = 0.0
    for name, rows in groups:
        names.append((y, name))
        for row in rows:
            y += 1
            placed.append(Placed(y, row))
        y += 1.4
    figure, axes = new_figure(_FRAME + ROW * y)
    axes.set_ylim(y - 0.6, -0.7)
    axes.set_yticks([entry.y for entry in placed], [str(entry.row["name"]) for entry in placed])
    axes.grid(axis="y", visible=False)
    for at, name in names:
        axes.text(
            0.0, at, name, transform=axes.get_yaxis_transform(), va="center", fontweight="bold", color=INK, clip_on=False
        )
    return figure, axes, placed
