"""Horizontal rows of bars or strips, grouped by case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.evidence.plots.style import ROW, new_figure

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
    labels = names + [(entry.y, str(entry.row["name"])) for entry in placed]
    axes.set_yticks([at for at, _ in labels], [label for _, label in labels])
    for label in axes.get_yticklabels()[: len(names)]:
        label.set_fontweight("bold")
    axes.grid(axis="y", visible=False)
    return figure, axes, placed


def value_at_right(axes: Any, entry: Placed, text: str) -> None:
    """A figure of the row, right of the axes."""
    axes.annotate(
        text, (1.0, entry.y), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points",
        va="center", annotation_clip=False,
    )  # fmt: skip
