"""Plots of whole decisions: time against tokens, paired ratios, stages, differences of probability, memory."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jevify.evidence.kinds.decide.summary import case_name
from jevify.evidence.plots.rows import grouped, value_at_right
from jevify.evidence.plots.style import GREY, INK, LIGHT, MIDDLE, MUTED, SERIES, SURFACE, legend, new_figure

Case = Mapping[str, Any]
_MIB = 2**20
# Stages in the order of a decision, those of the model in neighboring colors; the rest has no color of its own.
STAGES = {
    "prepare": SERIES[2],
    "pack": SERIES[1],
    "prefill": LIGHT,
    "branches": MIDDLE,
    "forward": SERIES[0],
    "scoring": SERIES[3],
}
_SMALLEST = 1e-9


def measured(case: Case) -> list[Mapping[str, Any]]:
    """The arms of a case that have times, failed proofs left out."""
    return [row for row in case.get("arms", []) if "error" not in row]


def latency(cases: Sequence[Case]) -> Any:
    """Median time of each arm against the tokens of a packed request, beside the floor; both axes logarithmic."""
    figure, axes = new_figure(3.6)
    cases = sorted((case for case in cases if measured(case)), key=tokens)
    names = list(dict.fromkeys(row["name"] for case in cases for row in measured(case)))
    for index, name in enumerate(names):
        points = [(tokens(case), row["median_ms"]) for case in cases for row in measured(case) if row["name"] == name]
        color = SERIES[index % len(SERIES)]
        axes.plot(*zip(*points, strict=True), color=color, marker="o", markeredgecolor=SURFACE, label=name)
    floors = [(tokens(case), case["floor"]["ms"]) for case in cases if case.get("floor")]
    if floors:
        axes.plot(*zip(*floors, strict=True), color=MUTED, linestyle="--", linewidth=1.2, label="floor")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([tokens(case) for case in cases], [_tick(case) for case in cases])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set_ylabel("median of a decision, ms")
    axes.set_xlabel("tokens of the request, the prefix once")
    legend(figure, *axes.get_legend_handles_labels(), columns=3)
    return figure


def tokens(case: Case) -> int:
    """Tokens of a case with its prefix once, as asked for."""
    size = case["case"]
    return int(size["prefix_tokens"] + size["questions"] * size["question_tokens"])


def _tick(case: Case) -> str:
    return f"{tokens(case):,}\nN={case['case']['questions']}"


def ratios(cases: Sequence[Case]) -> Any:
    """Each pair's ratio as a dot, the median and its interval; right of 1 the arm is faster than the baseline."""
    groups = []
    for case in cases:
        baseline = next((row for row in measured(case) if row.get("role") == "baseline"), None)
        rows = [{**row, "baseline": baseline} for row in measured(case) if baseline and row.get("ratio")]
        if rows:
            groups.append((case_name(case["case"]), rows))
    figure, axes, placed = grouped(groups)
    for entry in placed:
        row, ratio = entry.row, entry.row["ratio"]
        pairs = [slow / fast for slow, fast in zip(row["baseline"]["samples_ms"], row["samples_ms"], strict=True)]
        spread = [entry.y + (index % 3 - 1) * 0.18 for index in range(len(pairs))]
        axes.scatter(pairs, spread, s=13, color=SERIES[0], alpha=0.6, linewidths=0)
        axes.plot([ratio["low"], ratio["high"]], [entry.y] * 2, color=INK, linewidth=2.2, solid_capstyle="butt")
        axes.plot([ratio["median"]], [entry.y], marker="D", markersize=5, color=INK, markeredgecolor=SURFACE)
        value_at_right(axes, entry, f"{ratio['median']:.2f}x")
    axes.axvline(1.0, color=MUTED, linewidth=1)
    axes.set_xscale("log")
    _plain_log_ticks(axes)
    axes.set_xlabel("time of the baseline / time of the arm, each pair; bar: 95 % interval of the median")
    return figure


def _plain_log_ticks(axes: Any) -> None:
    low, high = axes.get_xlim()
    ticks = [value for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= value <= high]
    axes.set_xticks(ticks, [f"{value:g}x" for value in ticks])
    axes.set_xticks([], minor=True)


def stages(groups: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Any:
    """The share of each stage in the median decision of each row, and its time at the right."""
    from matplotlib.patches import Patch

    figure, axes, placed = grouped(groups)
    used = {}
    for entry in placed:
        found = entry.row["stages_median_ms"]
        total, left = found["total"], 0.0
        for stage, color in {**STAGES, "rest": GREY}.items():
            share = found.get(stage, 0.0) / total * 100 if stage != "rest" else max(0.0, 100 - left)
            if not share:
                continue
            used[stage] = color
            axes.barh(entry.y, share, left=left, height=0.72, color=color, edgecolor=SURFACE, linewidth=0.8)
            left += share
        value_at_right(axes, entry, f"{total:,.1f} ms")
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of a decision, %; median of each stage, the whole at the right")
    shown = [stage for stage in (*STAGES, "rest") if stage in used]
    legend(figure, [Patch(color=used[stage]) for stage in shown], shown, columns=len(shown))
    return figure


def has_differences(cases: Sequence[Case]) -> bool:
    """Whether an arm stored its differences of probability."""
    return any((row.get("quality") or {}).get("differences") for case in cases for row in measured(case))


def differences(cases: Sequence[Case]) -> Any:
    """How many probabilities differ from the oracle's by how much, an arm a panel, all cases together."""
    found: dict[str, list[float]] = {}
    for case in cases:
        for row in measured(case):
            if values := (row.get("quality") or {}).get("differences"):
                found.setdefault(row["name"], []).extend(values)
    figure, grid = new_figure(0.6 + 0.9 * len(found), len(found), sharex=True, sharey=True, squeeze=False)
    edges = [10 ** (exponent / 2) for exponent in range(round(2 * math.log10(_SMALLEST)), 1)]
    for axes, (name, values) in zip(grid[:, 0], found.items(), strict=True):
        exact = sum(value < _SMALLEST for value in values)
        axes.hist([value for value in values if value >= _SMALLEST], bins=edges, color=SERIES[0], edgecolor=SURFACE)
        axes.set_title(f"{name}: {len(values)} probabilities, {exact} equal, largest {max(values):.1e}", loc="left")
        axes.set_xscale("log")
        axes.set_ylabel("count")
    grid[-1, 0].set_xlabel("difference of a probability from the fp32 oracle's")
    return figure


def has_memory(cases: Sequence[Case]) -> bool:
    """Whether an arm stored its peak memory."""
    return any(_peak(row) for case in cases for row in measured(case))


def memory(cases: Sequence[Case]) -> Any:
    """Peak memory of one decision; on a CPU what the process held before it in grey."""
    groups = [(case_name(case["case"]), [row for row in measured(case) if _peak(row)]) for case in cases]
    figure, axes, placed = grouped([group for group in groups if group[1]])
    cuda = False
    for entry in placed:
        found, peak = entry.row["memory_bytes"], _peak(entry.row)
        cuda = found["cuda_peak"] is not None
        start = 0 if cuda else (found["resident_start"] or 0)
        axes.barh(entry.y, start / _MIB, height=0.72, color=GREY)
        axes.barh(entry.y, max(0, peak - start) / _MIB, left=start / _MIB, height=0.72, color=SERIES[0])
        value_at_right(axes, entry, f"{peak / _MIB:,.0f}" + ("" if cuda else f" (+{max(0, peak - start) / _MIB:,.0f})"))
    kind = "of the GPU's live tensors" if cuda else "resident; grey: held before the decision"
    axes.set_xlabel(f"peak memory during one decision, MiB, {kind}")
    return figure


def _peak(row: Mapping[str, Any]) -> int:
    found = row.get("memory_bytes") or {}
    return int(found.get("cuda_peak") or found.get("resident_peak") or 0)
