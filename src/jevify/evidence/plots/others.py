"""Plots of profiles, throughput, varied traffic and single kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

from jevify.evidence.kinds.decide.summary import case_name
from jevify.evidence.plots.rows import grouped, value_at_right
from jevify.evidence.plots.style import GREY, INK, MUTED, SERIES, SURFACE, legend, new_figure

Case = Mapping[str, Any]


def parts(cases: Sequence[Case]) -> Any:
    """Device time of each part of the model, with a mark at the floor of the part where there is one."""
    from matplotlib.lines import Line2D

    groups = [
        (f"{case_name(case['case'])}, {row['name']}", [{**entry, "name": entry["group"]} for entry in row["groups"]])
        for case in cases
        for row in case["arms"]
        if row.get("groups")
    ]
    figure, axes, placed = grouped(groups)
    for entry in placed:
        row = entry.row
        axes.barh(entry.y, row["microseconds"] / 1e3, height=0.72, color=SERIES[0])
        value_at_right(axes, entry, f"{row['microseconds'] / 1e3:,.2f} ms, {row['share']:.0%}")
        if row["floor_us"]:
            axes.plot([row["floor_us"] / 1e3] * 2, [entry.y - 0.45, entry.y + 0.45], color=INK, linewidth=2)
    axes.set_xlabel("device time of one decision, ms")
    if any(entry.row["floor_us"] for entry in placed):
        legend(figure, [Line2D([], [], color=INK, linewidth=2)], ["floor of the part"], columns=1)
    return figure


def throughput(result: Mapping[str, Any]) -> Any:
    """Requests a second of each arm, beside what was measured elsewhere, the target and the floor."""
    scenario = result["scenario"]
    elsewhere = [{**entry, "elsewhere": True} for entry in scenario["references"]]
    groups = []
    for case in result["cases"]:
        rows = [row for row in case["arms"] if "requests_per_second" in row and "error" not in row]
        groups.append((case["case"]["name"], [*rows, *elsewhere]))
    figure, axes, placed = grouped(groups)
    for entry in placed:
        rate = entry.row["requests_per_second"]
        axes.barh(entry.y, rate, height=0.72, color=GREY if "elsewhere" in entry.row else SERIES[0])
        axes.text(rate, entry.y, f" {rate:,.0f}", va="center")
    for value, text in _limits(result):
        axes.axvline(value, color=MUTED, linestyle="--", linewidth=1)
        axes.annotate(
            f"{text} {value:,.0f}", (value, 1.0), xycoords=("data", "axes fraction"), xytext=(-3, 2), ha="right",
            textcoords="offset points", color=MUTED, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlabel("requests a second; grey: measured elsewhere")
    return figure


def _limits(result: Mapping[str, Any]) -> list[tuple[float, str]]:
    found = [(case["floor"]["requests_per_second"], "floor") for case in result["cases"] if case.get("floor")]
    target = result["scenario"].get("target")
    return found + ([(target, "target")] if target is not None else [])


def buckets(cases: Sequence[Case]) -> Any:
    """Median time of the requests that shared a bucket, against its rows, for each arm with graphs."""
    figure, axes = new_figure(3.2)
    arms = [row for case in cases for row in case["arms"] if row.get("buckets")]
    for index, row in enumerate(arms):
        points = [(bucket["rows"], bucket["median_ms"]) for bucket in row["buckets"]]
        color = SERIES[index % len(SERIES)]
        axes.plot(*zip(*points, strict=True), color=color, marker="o", markeredgecolor=SURFACE, label=row["name"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of the bucket")
    axes.set_ylabel("median of its requests, ms")
    legend(figure, *axes.get_legend_handles_labels(), columns=3)
    return figure


def bandwidth(cases: Sequence[Case]) -> Any:
    """Share of the measured bandwidth that each way to run a kernel reaches, against rows, a kernel a panel."""
    points: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for case in cases:
        for row in case["arms"]:
            if row.get("bandwidth_share") is not None:
                kernel, way = row["name"].split(", ")
                points.setdefault(kernel, {}).setdefault(way, []).append(
                    (case["case"]["rows"], 100 * row["bandwidth_share"])
                )
    figure, grid = new_figure(2.9, 1, len(points), sharey=True, squeeze=False)
    ways = list(dict.fromkeys(way for found in points.values() for way in found))
    for axes, (kernel, found) in zip(grid[0], points.items(), strict=True):
        for way, line in found.items():
            color = SERIES[ways.index(way) % len(SERIES)]
            axes.plot(*zip(*sorted(line), strict=True), color=color, marker="o", markeredgecolor=SURFACE, label=way)
        axes.set_title(kernel)
        axes.set_xscale("log")
        rows = sorted({at for line in found.values() for at, _ in line})
        axes.set_xticks(rows, [f"{at}" if at < 1_000 else f"{at / 1_000:.1f}k" for at in rows])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("rows")
        axes.set_ylim(0, 100)
    grid[0][0].set_ylabel("share of bandwidth, %")
    legend(figure, *grid[0][0].get_legend_handles_labels(), columns=len(ways))
    return figure
