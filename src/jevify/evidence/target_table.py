"""The table of targets of a result of any kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jevify.evidence.table import Table, figure

_HEADINGS = ("case", "figure", "target", "measured", "outcome")


def target_tables(cases: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[Table]:
    """A row for each target of each case; no table where there are none. name: what a case is called."""
    rows = [
        [f"{name(case['case'])}, {case['targets']['arm']}" if index == 0 else "", *_cells(entry)]
        for case in cases
        for index, entry in enumerate(case.get("targets", {}).get("figures", []))
    ]
    return [Table(_HEADINGS, rows)] if rows else []


def _cells(entry: Mapping[str, Any]) -> list[str]:
    if entry["met"] is None:
        outcome = "not measured"
    elif entry["met"]:
        outcome = "met"
    else:
        outcome = f"missed by {entry['short_by']:.2f} ({entry['short_by'] / entry['target']:.0%})"
    return [entry["figure"], f"{entry['target']:g}", figure(entry["measured"], ".2f"), outcome]
