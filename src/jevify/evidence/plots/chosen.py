"""Which plots a run of each kind has."""

from collections.abc import Callable, Mapping
from typing import Any

from jevify.evidence.kinds.decide.summary import case_name
from jevify.evidence.plots import decide, others
from jevify.evidence.plots.crossover import crossover
from jevify.evidence.plots.style import drawing

Drawing = tuple[str, Any]


def figures(result: Mapping[str, Any]) -> list[Drawing]:
    """Title and matplotlib figure of every plot the run has data for, none for a kind that has tables alone.

    Raises JevifyError without matplotlib.
    """
    draw = _BY_KIND.get(result["kind"])
    if draw is None:
        return []
    with drawing():
        return draw(result)


def _decide(result: Mapping[str, Any]) -> list[Drawing]:
    cases = [case for case in result["cases"] if decide.measured(case)]
    if not cases:
        return []
    found = [("Time of a decision against its tokens", decide.latency(cases))]
    if any(row.get("ratio") for case in cases for row in decide.measured(case)):
        found.append(("Speed-up over the baseline, pair by pair", decide.ratios(cases)))
    found.append(("Where the time goes", decide.stages([(case_name(c["case"]), decide.measured(c)) for c in cases])))
    if decide.has_differences(cases):
        found.append(("Differences from the oracle", decide.differences(cases)))
    if decide.has_memory(cases):
        found.append(("Peak memory", decide.memory(cases)))
    return found


def _profile(result: Mapping[str, Any]) -> list[Drawing]:
    cases = result["cases"]
    staged = [
        (case_name(case["case"]), rows)
        for case in cases
        if (rows := [row for row in case["arms"] if "stages_median_ms" in row])
    ]
    found = [("Where the time goes", decide.stages(staged))] if staged else []
    if any(row.get("groups") for case in cases for row in case["arms"]):
        found.append(("Parts of the model on the device", others.parts(cases)))
    return found


def _throughput(result: Mapping[str, Any]) -> list[Drawing]:
    rows = [row for case in result["cases"] for row in case["arms"] if "error" not in row]
    return [("Requests a second", others.throughput(result))] if rows else []


def _varied(result: Mapping[str, Any]) -> list[Drawing]:
    rows = [row for case in result["cases"] for row in case["arms"] if row.get("buckets")]
    return [("Time of the requests of a bucket", others.buckets(result["cases"]))] if rows else []


def _kernels(result: Mapping[str, Any]) -> list[Drawing]:
    rows = [row for case in result["cases"] for row in case["arms"] if row.get("bandwidth_share") is not None]
    return [("Share of the memory bandwidth", others.bandwidth(result["cases"]))] if rows else []


def _crossover(result: Mapping[str, Any]) -> list[Drawing]:
    return [
        ("Crossover of shared attention: time of what it replaces over its own, framed where it loses", crossover(case))
        for case in result["cases"]
        if case["arms"]
    ]


_BY_KIND: Mapping[str, Callable[[Mapping[str, Any]], list[Drawing]]] = {
    "decide": _decide,
    "profile": _profile,
    "throughput": _throughput,
    "varied": _varied,
    "kernels": _kernels,
    "crossover": _crossover,
}
