"""The crossover map: how many times faster shared attention is than what it replaces, and where it loses."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from jevify.evidence.plots.style import INK, LOSS_TO_WIN, SURFACE, legend, new_figure

_PAIRS = (("kernel_us", "calls_us", "against SDPA calls"), ("behind_us", "repeat_us", "against a repeated cache"))
# Between these ratios a color each.
_STEPS = (0.5, 0.9, 1.1, 2.0, 4.0, 8.0)
_LABELS = ("< 0.5x", "0.5 to 0.9", "0.9 to 1.1", "1.1 to 2", "2 to 4", "4 to 8", "8x or more")


def crossover(case: Mapping[str, Any]) -> Any:
    """A row of maps for each thing replaced, a map for each branch length: prefix across, branches up.

    Losing points are framed.
    """
    from matplotlib.patches import Patch, Rectangle

    rows = case["arms"]
    lengths, prefixes, branches = (sorted({row[name] for row in rows}) for name in ("rows", "prefix", "branches"))
    figure, grid = new_figure(
        0.7 + len(_PAIRS) * (0.75 + 0.24 * len(branches)), len(_PAIRS), len(lengths), sharey=True, squeeze=False
    )
    for (ours, theirs, title), line in zip(_PAIRS, grid, strict=True):
        for length, axes in zip(lengths, line, strict=True):
            for row in rows:
                if row["rows"] != length or ours not in row or theirs not in row:
                    continue
                x, y, ratio = prefixes.index(row["prefix"]), branches.index(row["branches"]), row[theirs] / row[ours]
                color = LOSS_TO_WIN[bisect_right(_STEPS, ratio)]
                edge, width = (INK, 1.4) if ratio < 1 else (SURFACE, 0.8)
                corner = (x - 0.47, y - 0.47)
                axes.add_patch(Rectangle(corner, 0.94, 0.94, facecolor=color, edgecolor=edge, linewidth=width))
                axes.text(
                    x, y, f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}", ha="center", va="center", fontsize=6
                )
            axes.grid(visible=False)
            axes.set_xlim(-0.5, len(prefixes) - 0.5)
            axes.set_ylim(-0.5, len(branches) - 0.5)
            axes.set_xticks(range(len(prefixes)), [_short(prefix) for prefix in prefixes], fontsize=6.5)
            axes.set_yticks(range(len(branches)), [str(count) for count in branches], fontsize=6.5)
            axes.set_title(f"{length} tokens a branch", fontsize=7.5)
        line[0].set_ylabel(f"{title}\nbranches", fontsize=7.5)
    for axes in grid[-1]:
        axes.set_xlabel("prefix tokens", fontsize=7.5)
    legend(figure, [Patch(color=color) for color in LOSS_TO_WIN], _LABELS, columns=len(_LABELS))
    return figure


def _short(count: int) -> str:
    return str(count) if count < 1024 else f"{count / 1024:g}k"
