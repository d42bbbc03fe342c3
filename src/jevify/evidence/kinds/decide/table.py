"""The tables of a decide run: times and quality of every arm, then targets."""

from collections.abc import Mapping, Sequence
from typing import Any

from jevify.evidence.cold import TIMES
from jevify.evidence.kinds.decide.summary import case_name as case_name
from jevify.evidence.stats import median
from jevify.evidence.table import UNKNOWN, Table, figure
from jevify.evidence.target_table import target_tables

_MIB = 1024 * 1024
_HEADINGS = (
    "case",
    "arm",
    "median ms",
    "p90 ms",
    "best ms",
    "ratio [95 %]",
    "share",
    "GPU ms",
    "x floor",
    "GPU x floor",
    "peak MiB",
    "labels agree",
    "max |dp|",
    "median |dp|",
)
_COLD_HEADINGS = ("cold", "arm", "compile caches", "processes", "import ms", "load ms", "first ms", "second ms")
_PARTS = (range(2, 7), range(7, 11), range(11, 14))


def terms(scenario: Mapping[str, Any]) -> str:
    """How the rounds ran."""
    contexts = "a fresh context each round" if scenario["fresh_context"] else "one context for all rounds"
    return f"{scenario['repeats']} interleaved rounds after {scenario['warmup']} of warm-up, {contexts}"


def tables(result: Mapping[str, Any]) -> list[Table]:
    """A row for each arm of each case; rows of cold starts and of targets where a case has them."""
    rows = [
        [case_name(case["case"]) if index == 0 else "", row["name"], *_cells(row)]
        for case in result["cases"]
        for index, row in enumerate(case.get("arms", []))
    ]
    return [Table(_HEADINGS, rows, _PARTS), *target_tables(result["cases"], case_name), *_cold(result["cases"])]


def _cold(cases: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Medians over the fresh processes of each arm, apart from the warm times."""
    rows = []
    for case in cases:
        for index, row in enumerate(case.get("cold", [])):
            name = case_name(case["case"]) if index == 0 else ""
            if "error" in row:
                rows.append([name, row["name"], "failed", *[UNKNOWN] * (len(_COLD_HEADINGS) - 3)])
                continue
            for caches in ("empty", "left"):
                times = [figure(median([found[key] for found in row[caches]]), ".0f") for key in TIMES]
                rows.append([name, row["name"], caches, str(len(row[caches])), *times])
                name = ""
    return [Table(_COLD_HEADINGS, rows)] if rows else []


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Bounds, floors, the noise floor, sizes that were missed, flips."""
    found = []
    for case in result["cases"]:
        name = case_name(case["case"])
        if case.get("bound") is not None:
            found.append(
                f"{name}: sharing the prefix can give {case['bound']:.2f}x, counted in tokens; share is ratio over that"
            )
        if floor := case.get("floor"):
            found.append(
                f"{name}: the floor on {floor['machine']} is {floor['ms']:.2f} ms: weights {floor['weights_ms']:.2f}, "
                f"arithmetic {floor['arithmetic_ms']:.2f}"
            )
        found += [f"{name}: {line}" for line in _noise(case.get("noise") or {})]
        found += [f"{name}{line}" for line in _sizes(case.get("requests"))]
        for row in case.get("arms", []):
            found += [f"{name}, {row['name']}: {line}" for line in _flips(row)]
    return found


def _sizes(sizes: Mapping[str, Any] | None) -> list[str]:
    if not sizes or sizes["exact"]:
        return []
    return [
        f": sizes were not met exactly: prefix {_span(sizes['shared_prefix_tokens'])}, "
        f"full question {_span(sizes['full_question_tokens'])} tokens"
    ]


def _noise(noise: Mapping[str, Any]) -> list[str]:
    if "time_ratio" not in noise:
        return []
    ratio, quality = noise["time_ratio"], noise["quality"]
    found = [
        f"the baseline over itself takes {ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}] the time"
    ]
    if quality:
        found.append(
            f"the baseline against itself with {noise['shape']}: labels agree {quality['agreement']:.1%} of "
            f"{quality['questions']}, max |dp| {quality['largest_difference']:.1e}, "
            f"median |dp| {quality['median_difference']:.1e}"
        )
    return found


def _flips(row: Mapping[str, Any]) -> list[str]:
    return [
        f"request {flip['request'] + 1}, {flip['question']}: "
        f"{flip['candidate_label']} (lead {flip['candidate_margin']:.2g}), "
        f"the oracle has {flip['oracle_label']} (lead {flip['oracle_margin']:.2g})"
        for flip in (row.get("quality") or {}).get("flips", [])
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "error" in row:
        return ["failed", *[UNKNOWN] * (len(_HEADINGS) - 3)]
    ratio = row["ratio"]
    quality = row["quality"] if row["quality"] and "error" not in row["quality"] else None
    return [
        figure(row["median_ms"]),
        figure(row["p90_ms"]),
        figure(row["min_ms"]),
        f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else UNKNOWN,
        figure(row.get("bound_share"), ".0%"),
        figure(row["stages_median_ms"].get("device"), ".2f"),
        figure(row.get("times_floor"), ".1f"),
        figure(row.get("gpu_times_floor"), ".2f"),
        _memory(row["memory_bytes"]),
        f"{quality['agreement']:.1%} of {quality['questions']}" if quality else UNKNOWN,
        figure(quality["largest_difference"], ".1e") if quality else UNKNOWN,
        figure(quality["median_difference"], ".1e") if quality else UNKNOWN,
    ]


def _memory(memory: Mapping[str, Any] | None) -> str:
    """The CUDA peak where there is one; else the resident peak and what it rose by during the decision."""
    if memory is None:
        return UNKNOWN
    if memory["cuda_peak"] is not None:
        return f"{memory['cuda_peak'] / _MIB:.0f}"
    if memory["resident_peak"] is None or memory["resident_start"] is None:
        return UNKNOWN
    rise = memory["resident_peak"] - memory["resident_start"]
    return f"{memory['resident_peak'] / _MIB:.0f} (+{max(rise, 0) / _MIB:.0f})"


def _span(ends: list[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
