"""The table of a throughput run, with what was measured elsewhere."""

from collections.abc import Mapping
from typing import Any

from jevify.evidence.table import UNKNOWN, Table, figure
from jevify.evidence.target_table import target_tables

_HEADINGS = ("case", "arm", "requests/s", "median ms", "p90 ms", "best ms", "ratio", "replays", "fallbacks")
_REFERENCE_HEADINGS = ("measured elsewhere", "what", "requests/s")


def case_name(case: Mapping[str, Any]) -> str:
    """What the case is called, with its size."""
    return f"{case['name']}, N={case['questions']} P={case['prefix_tokens']} Q={case['question_tokens']}"


def terms(scenario: Mapping[str, Any]) -> str:
    """How the rounds ran."""
    return f"{scenario['repeats']} interleaved rounds after {scenario['warmup']} of warm-up, fresh contexts each round"


def tables(result: Mapping[str, Any]) -> list[Table]:
    """A row for each arm, one for each figure from elsewhere, one for the target."""
    rows = [
        [case_name(case["case"]) if index == 0 else "", row["name"], *_cells(row)]
        for case in result["cases"]
        for index, row in enumerate(case["arms"])
    ]
    references = [
        [reference["source"], reference["name"], figure(reference["requests_per_second"], ".0f")]
        for reference in result["scenario"]["references"]
    ]
    found = [Table(_HEADINGS, rows)]
    if references:
        found.append(Table(_REFERENCE_HEADINGS, references))
    return found + target_tables(result["cases"], case_name)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """The floor, where the machine's limits are known."""
    return [
        f"the floor on {floor['machine']} is {floor['ms']:.1f} ms, {floor['requests_per_second']:.0f} requests/s"
        for case in result["cases"]
        if (floor := case.get("floor"))
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "error" in row:
        return ["failed", *[UNKNOWN] * (len(_HEADINGS) - 3)]
    executor = row["settings"]["executor"]
    before, after = (row["counters"][when].get(executor, {}).get("graphs") for when in ("before", "after"))
    moved = [after[name] - before[name] if before and after else None for name in ("replays", "fallbacks")]
    return [
        figure(row["requests_per_second"]),
        figure(row["median_ms"]),
        figure(row["p90_ms"]),
        figure(row["min_ms"]),
        figure(row["ratio"]["median"], ".2f") if row["ratio"] else UNKNOWN,
        *(figure(value, "d") for value in moved),
    ]
