"""The tables of a varied run: hits and memory of every arm, buckets, targets."""

from collections.abc import Mapping
from typing import Any

from jevify.evidence.table import UNKNOWN, Table, figure
from jevify.evidence.target_table import target_tables

_MIB = 1024 * 1024
_HEADINGS = (
    "case",
    "arm",
    "requests",
    "median ms",
    "p90 ms",
    "hit rate",
    "captures",
    "fallbacks",
    "evictions",
    "worst p90 / median",
    "capture ms",
    "break-even",
    "retained of budget MiB",
    "driver MiB",
)
_PARTS = (range(2, 9), range(9, 12), range(12, 14))
_BUCKET_HEADINGS = ("arm", "rows of the bucket", "requests", "median ms", "p90 / median")


def case_name(case: Mapping[str, Any]) -> str:
    """What the case is called."""
    return str(case["name"])


def terms(scenario: Mapping[str, Any]) -> str:
    """What the requests were."""
    (least, most), (few, many) = scenario["words"], scenario["questions"]
    return (
        f"{scenario['requests']} requests of {least} to {most} words and {few} to {many} questions in random order, "
        f"after {scenario['warmup']} others; up to {scenario['repeats']} passes"
    )


def tables(result: Mapping[str, Any]) -> list[Table]:
    """A row for each arm, one for each bucket of each arm, one for each target."""
    arms = [
        [case_name(case["case"]) if index == 0 else "", row["name"], *_cells(row)]
        for case in result["cases"]
        for index, row in enumerate(case["arms"])
    ]
    buckets = [
        [
            row["name"] if index == 0 else "",
            str(bucket["rows"]),
            str(bucket["requests"]),
            figure(bucket["median_ms"]),
            figure(bucket["p90_over_median"], ".2f"),
        ]
        for case in result["cases"]
        for row in case["arms"]
        for index, bucket in enumerate(row.get("buckets", []))
    ]
    found = [Table(_HEADINGS, arms, _PARTS)]
    if buckets:
        found.append(Table(_BUCKET_HEADINGS, buckets))
    return found + target_tables(result["cases"], case_name)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Arms that were stopped, and what the driver's column holds."""
    rows = [row for case in result["cases"] for row in case["arms"] if "error" not in row]
    found = [
        f"{row['name']}: stopped at the time limit after {sum(entry['requests'] for entry in row['passes'])} requests"
        for row in rows
        if row["stopped"]
    ]
    if any(row["driver_bytes"]["start"] is not None for row in rows):
        found.append("driver memory counts all that is on the device: after warm-up, the first pass and the last")
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "error" in row:
        return ["failed", *[UNKNOWN] * (len(_HEADINGS) - 3)]
    worst = max((bucket["p90_over_median"] for bucket in row["buckets"]), default=None)
    driver = [row["driver_bytes"][when] for when in ("start", "first_pass", "end")]
    retained = UNKNOWN
    if row["budget_bytes"]:
        retained = f"{row['retained_bytes'] / _MIB:.0f} of {row['budget_bytes'] / _MIB:.0f}"
    return [
        str(row["requests"]),
        figure(row["median_ms"]),
        figure(row["p90_ms"]),
        figure(row["hit_rate"], ".1%"),
        *(str(row["graphs"][name]) for name in ("captures", "fallbacks", "evictions")),
        figure(worst, ".2f"),
        figure(row["capture_ms"]),
        figure(row["break_even"]),
        retained,
        UNKNOWN if None in driver else " / ".join(f"{value / _MIB:.0f}" for value in driver),
    ]
