"""The table of a kernels run."""

from collections.abc import Mapping
from typing import Any

from jevify.evidence.table import UNKNOWN, Table, figure

_HEADINGS = ("rows", "kernel", "us", "x eager", "GB/s", "share of bandwidth", "mismatch", "ulp")


def case_name(case: Mapping[str, Any]) -> str:
    """The number of rows."""
    return str(case["name"])


def terms(scenario: Mapping[str, Any]) -> str:
    """How it was timed."""
    shape = scenario["shape"]
    return (
        f"hidden {shape['hidden']}, intermediate {shape['intermediate']}, {shape['heads']} heads over "
        f"{shape['kv_heads']} of {shape['head_size']}; GPU time of a call among others in one CUDA graph, inputs and "
        f"outputs beyond the cache, median of {scenario['repeats']} replays"
    )


def tables(result: Mapping[str, Any]) -> list[Table]:
    """A row for each kernel and each way to run it."""
    rows = []
    for case in result["cases"]:
        times = {row["name"]: row.get("microseconds") for row in case["arms"]}
        for index, row in enumerate(case["arms"]):
            eager = times.get(f"{row['name'].split(',')[0]}, eager")
            rows.append([case_name(case["case"]) if index == 0 else "", row["name"], *_cells(row, eager)])
    return [Table(_HEADINGS, rows)]


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What was not measured and why, each reason once."""
    reasons: dict[str, list[str]] = {}
    for case in result["cases"]:
        for row in case["arms"]:
            if "skipped" in row:
                reasons.setdefault(row["skipped"], []).append(f"{row['name']} at {case_name(case['case'])}")
    found = [f"not measured: {'; '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [*found, "x eager: the time of the eager reference over this; mismatch and ulp: against that reference"]


def _cells(row: Mapping[str, Any], eager: float | None) -> list[str]:
    if "microseconds" not in row:
        return ["failed" if "error" in row else "skipped", *[UNKNOWN] * (len(_HEADINGS) - 3)]
    return [
        figure(row["microseconds"], ".2f"),
        figure(None if eager is None else eager / row["microseconds"], ".2f"),
        figure(row["gb_per_second"], ".0f"),
        figure(row["bandwidth_share"], ".0%"),
        figure(row["mismatch"], ".1e"),
        str(row["ulp"]),
    ]
