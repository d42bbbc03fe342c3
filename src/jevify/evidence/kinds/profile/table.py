"""The tables of a profile: by part of the model, then by kernel."""

from collections.abc import Mapping
from typing import Any

from jevify.evidence.kinds.decide.summary import case_name as case_name
from jevify.evidence.table import Table, figure

_GROUP_HEADINGS = ("case", "part", "kernels", "us", "share", "floor us", "x floor")
_KERNEL_HEADINGS = ("case", "kernel", "part", "calls", "us", "share")
# The rest of a pass is a long tail of small kernels; the stored run has them all.
_SHOWN = 12


def terms(scenario: Mapping[str, Any]) -> str:
    """What was profiled."""
    return f"{scenario['repeats']} profiled decisions after {scenario['warmup']} of warm-up, fresh contexts"


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Times of one decision: a row for each part of the model, and for each of the longest kernels."""
    groups, kernels = [], []
    for case in result["cases"]:
        for row in case["arms"]:
            name = f"{case_name(case['case'])}, {row['name']}"
            groups += [_group(entry, name if index == 0 else "") for index, entry in enumerate(row.get("groups", []))]
            shown = row.get("kernels", [])[:_SHOWN]
            kernels += [_kernel(entry, name if index == 0 else "") for index, entry in enumerate(shown)]
    return [Table(_GROUP_HEADINGS, groups), Table(_KERNEL_HEADINGS, kernels)]


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Busy time beside the whole pass and the floor."""
    found = []
    for case in result["cases"]:
        for row in case["arms"]:
            if "error" in row:
                continue
            told = f"kernels take {row['busy_us']:.0f} us"
            if row["device_us"] is not None:
                told += f" of {row['device_us']:.0f} us on the device (under the profiler)"
            if row["floor_us"] is not None:
                told += f"; the floor of {row['rows']} rows is {row['floor_us']:.0f} us"
            found.append(f"{case_name(case['case'])}, {row['name']}: {told}")
    return found


def _group(entry: Mapping[str, Any], name: str) -> list[str]:
    floor = entry["floor_us"]
    over = None if not floor else entry["microseconds"] / floor
    return [
        name,
        entry["group"],
        f"{entry['calls']:g}",
        figure(entry["microseconds"]),
        figure(entry["share"], ".1%"),
        figure(floor),
        figure(over, ".2f"),
    ]


def _kernel(entry: Mapping[str, Any], name: str) -> list[str]:
    told = [entry["kernel"][:60], entry["group"], f"{entry['calls']:g}"]
    return [name, *told, figure(entry["microseconds"]), figure(entry["share"], ".1%")]
