"""Draw a crossover run: how many times faster shared attention is than what it replaces, and where it loses.

python scripts/plot_crossover.py evidence/crossover-cuda.json docs/images/crossover.svg
"""

import argparse
import math
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.colors import TwoSlopeNorm

from jevify.evidence.store import read_result

PAIRS = (("kernel_us", "calls_us", "packed: SDPA calls"), ("behind_us", "repeat_us", "forked: repeated cache"))


def main() -> None:
    """Read RUN and write OUT in the format of its ending."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    (case,) = read_result(args.run)["cases"]
    pyplot.rcParams.update({"svg.hashsalt": "crossover", "svg.fonttype": "none"})
    figure = draw(case)
    figure.savefig(args.out, bbox_inches="tight", metadata={"Date": None} if args.out.suffix == ".svg" else None)


def draw(case: dict[str, Any]) -> Any:
    """A row of heat maps for each thing replaced, a map for each branch length: prefix across, branches up.

    Blue is where the kernel wins; a losing point is framed and its ratio is bold.
    """
    rows = case["arms"]
    lengths, prefixes, branches = (sorted({row[name] for row in rows}) for name in ("rows", "prefix", "branches"))
    figure, grid = pyplot.subplots(
        len(PAIRS), len(lengths), figsize=(3.2 * len(lengths), 2.8 * len(PAIRS)), squeeze=False, layout="constrained"
    )
    norm = TwoSlopeNorm(0.0, -2.0, 4.0)
    image = None
    for (ours, theirs, title), axes in zip(PAIRS, grid, strict=True):
        ratios = {
            (row["rows"], row["prefix"], row["branches"]): row[theirs] / row[ours]
            for row in rows
            if ours in row and theirs in row
        }
        for length, axis in zip(lengths, axes, strict=True):
            found = [[ratios.get((length, prefix, count)) for prefix in prefixes] for count in branches]
            shades = [[math.nan if ratio is None else math.log2(ratio) for ratio in line] for line in found]
            image = axis.imshow(shades, cmap="RdBu", norm=norm, origin="lower", aspect="auto")
            for y, line in enumerate(found):
                for x, ratio in enumerate(line):
                    if ratio is not None:
                        _mark(axis, x, y, ratio)
            axis.set_xticks(range(len(prefixes)), [str(prefix) for prefix in prefixes], fontsize=7)
            axis.set_yticks(range(len(branches)), [str(count) for count in branches], fontsize=7)
            axis.set_title(f"{title}, {length} tokens a branch", fontsize=8)
            axis.set_xlabel("prefix tokens", fontsize=7)
            axis.set_ylabel("branches", fontsize=7)
    if image is not None:
        bar = figure.colorbar(image, ax=grid, shrink=0.8, label="time of what is replaced / time of the kernel")
        bar.set_ticks([-2, -1, 0, 1, 2, 3, 4], labels=["1/4", "1/2", "1", "2", "4", "8", "16"])
    figure.suptitle(f"Shared tree attention on {case['case']['device']}: framed where it loses", fontsize=10)
    return figure


def _mark(axis: Any, x: int, y: int, ratio: float) -> None:
    lost = ratio < 1
    color = "white" if abs(math.log2(ratio)) > 2.5 else "black"
    axis.text(
        x, y, f"{ratio:.2g}", ha="center", va="center", fontsize=6, color=color, fontweight="bold" if lost else "normal"
    )
    if lost:
        axis.add_patch(pyplot.Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor="black", linewidth=1.5))


if __name__ == "__main__":
    main()
