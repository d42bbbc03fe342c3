"""The table of a crossover run."""

from collections.abc import Mapping
from typing import Any

from jevify.evidence.table import UNKNOWN, Table, figure

_HEADINGS = ("grid", "point", "kernel us", "calls us", "calls / kernel", "behind us", "repeat us", "repeat / behind")
# What replaces what: the column of the kernel, that of the other, and the words for it.
_PAIRS = (
    ("kernel_us", "calls_us", "packed, against reference SDPA calls"),
    ("behind_us", "repeat_us", "forked, against repeated keys and values"),
)


def case_name(case: Mapping[str, Any]) -> str:
    """What the case is called."""
    return str(case["name"])


def terms(scenario: Mapping[str, Any]) -> str:
    """What was timed, and how."""
    heads, kv_heads, size = scenario["heads"]
    return (
        f"one layer's attention, {heads} heads over {kv_heads} of {size}; GPU time of a call among others in one CUDA "
        f"graph, median of {scenario['repeats']} replays"
    )


def tables(result: Mapping[str, Any]) -> list[Table]:
    """A row for each point of the grid."""
    return [
        Table(
            _HEADINGS,
            [
                [case_name(case["case"]) if index == 0 else "", row["name"], *_cells(row)]
                for case in result["cases"]
                for index, row in enumerate(case["arms"])
            ],
        )
    ]


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Where the kernel loses, and what of the grid was left out."""
    found = []
    for case in result["cases"]:
        for ours, theirs, what in _PAIRS:
            both = [row for row in case["arms"] if ours in row and theirs in row]
            lost = [row["name"] for row in both if row[ours] > row[theirs]]
            told = f": {', '.join(lost)}" if lost else ""
            found.append(f"{what}: the kernel loses at {len(lost)} of {len(both)} points{told}")
        if (left := case["case"]["points"] - case["case"]["measured"]) > 0:
            found.append(f"{left} points were left out at the time limit")
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = []
    for ours, theirs, _ in _PAIRS:
        kernel, other = row.get(ours), row.get(theirs)
        ratio = UNKNOWN if kernel is None or other is None else f"{other / kernel:.2f}"
        cells += [figure(kernel), figure(other), ratio]
    return cells
