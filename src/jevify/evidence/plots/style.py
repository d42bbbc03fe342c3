"""One look for all plots: sizes, and colors that the page chooses by theme.

Figures are drawn in placeholder colors, which become CSS variables in the SVG.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jevify.errors import JevifyError

WIDTH = 8.0
"""Inches of every figure; pages scale it."""

ROW = 0.23
"""Inches of a row of bars or strips."""

INK, MUTED, GRID, SURFACE = "#010101", "#020202", "#030303", "#040404"
SERIES = tuple(f"#0a000{index}" for index in range(1, 8))
"""Colors of series in the order of their use."""

GREY = "#0b0001"
LIGHT, MIDDLE = "#0b0002", "#0b0003"
"""Neighbors of the first series' color, for parts of one thing."""

LOSS_TO_WIN = tuple(f"#0c000{index}" for index in range(1, 8))
"""Colors from a large loss over parity to a large win."""

VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    SURFACE: "surface",
    GREY: "grey",
    LIGHT: "light",
    MIDDLE: "middle",
    **{color: f"series-{index}" for index, color in enumerate(SERIES, start=1)},
    **{color: f"step-{index}" for index, color in enumerate(LOSS_TO_WIN, start=1)},
}
"""Placeholder color to the name of its CSS variable."""

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "jevify",
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Around whatever draws: the common look. Raises JevifyError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise JevifyError("plots need matplotlib: pip install 'jevify[report]'") from None
    matplotlib.use("svg")
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure of the common width and `height` inches, and its axes; inside `drawing`."""
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", **options)


def svg(figure: Any, label: str, prefix: str) -> str:
    """The figure, closed, as an <svg> element of a page; its ids begin with `prefix`, which is unique there."""
    from matplotlib import pyplot

    out = io.StringIO()
    with drawing():
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The page's fonts, and its width.
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 var(--sans)", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}-", text)
    for color, name in VARIABLES.items():
        text = text.replace(color, f"var(--{name})")
    return text.strip()


def legend(figure: Any, handles: Any, labels: Any, *, columns: int) -> None:
    """A legend above the axes, from the left."""
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=1.4, columnspacing=1.4)
