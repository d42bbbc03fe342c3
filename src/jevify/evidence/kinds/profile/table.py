"""The tables of a profile: by stage, by part of the model, then by kernel."""

from collections.abc import Mapping
from typing import Any

from jevify.evidence.kinds.decide.summary import case_name as case_name
from jevify.evidence.stage_table import INSIDE
from jevify.evidence.table import Table, figure

_STAGE_HEADINGS = ("case", "stage", "class", "median ms", "p90 ms", "share")
_GROUP_HEADINGS = ("case", "part", "kernels", "us", "share", "floor us", "x floor")
_KERNEL_HEADINGS = ("case", "kernel", "part", "calls", "us", "share")
# The rest of a pass is a long tail of small kernels; the stored run has them all.
_SHOWN = 12


def terms(scenario: Mapping[str, Any]) -> str:
    """What was profiled."""
    again = ", and as many under the profiler" if scenario.get("kernels") else ""
    return f"{scenario['repeats']} decisions after {scenario['warmup']} of warm-up{again}, fresh contexts"


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Times of one decision: a row for each stage, each part of the model, and each of the longest kernels."""
    stages, groups, kernels = [], [], []
    for case in result["cases"]:
        for row in case["arms"]:
            name = f"{case_name(case['case'])}, {row['name']}"
            stages += [_stage(entry, name if index == 0 else "") for index, entry in enumerate(row.get("stages", []))]
            if "stages" in row:
                stages.append(
                    ["", "total", "", figure(row["median_ms"], ".2f"), figure(row["p90_ms"], ".2f"), "100.0%"]
                )
            groups += [_group(entry, name if index == 0 else "") for index, entry in enumerate(row.get("groups", []))]
            shown = row.get("kernels", [])[:_SHOWN]
            kernels += [_kernel(entry, name if index == 0 else "") for index, entry in enumerate(shown)]
    found = [Table(_STAGE_HEADINGS, stages), Table(_GROUP_HEADINGS, groups), Table(_KERNEL_HEADINGS, kernels)]
    return [table for table in found if table.rows]


def remarks(result: Mapping[str, Any]) -> list[str]:
    """The dominant stage, the floor, active settings and fallbacks; busy time beside the whole pass."""
    return [
        f"{case_name(case['case'])}, {row['name']}: {line}"
        for case in result["cases"]
        for row in case["arms"]
        for line in (*_stages(row), *_busy(row))
    ]


def _stages(row: Mapping[str, Any]) -> list[str]:
    if "stages" not in row:
        return []
    found = row["dominant"]
    told = f"dominant stage {found['stage']} ({found['class']}), {found['share']:.1%} of {row['median_ms']:.2f} ms"
    if "times_floor" not in row:
        told += "; no floor, since the limits of this device or dtype were not measured"
    else:
        told += f"; the whole decision is {row['times_floor']:.2f}x the floor of {row['floor_us'] / 1e3:.2f} ms"
    active = ", ".join(f"{name} {_setting(value)}" for name, value in row["active"].items())
    fallbacks = "; ".join(f"{name}: {reason}" for name, reason in row["fallbacks"].items())
    return [told, f"active: {active or 'nothing'}", f"fallbacks: {fallbacks or 'none'}"]


def _busy(row: Mapping[str, Any]) -> list[str]:
    if "busy_us" not in row:
        return []
    told = f"kernels take {row['busy_us']:.0f} us"
    if row["device_us"] is not None:
        told += f" of {row['device_us']:.0f} us on the device (under the profiler)"
    if row["floor_us"] is not None:
        told += f"; the floor of {row['rows']} rows is {row['floor_us']:.0f} us"
    return [told]


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(value) or "none" if isinstance(value, list) else str(value)


def _stage(entry: Mapping[str, Any], name: str) -> list[str]:
    inside = INSIDE.get(entry["stage"])
    times = [figure(entry[key], ".2f") for key in ("median_ms", "p90_ms")]
    share = f"in {inside}" if inside else figure(entry["share"], ".1%")
    return [name, entry["stage"], entry["class"], *times, share]


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
