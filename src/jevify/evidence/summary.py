"""What is stored of a case beside its arms' own rows: sizes, ratios, the bound, distance from the oracle."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jevify.evidence.arm import ArmRun
from jevify.evidence.compare import Probabilities, compare, probabilities
from jevify.evidence.scenario import Case
from jevify.evidence.stats import Ratio, median, paired_ratio
from jevify.evidence.workload import SizedRequest

_DECIMALS = 4


def compared(runs: Sequence[ArmRun], references: list[Probabilities] | str, seed: int) -> dict[str, Any]:
    """The bound, and the rows of a case's arms beside the baseline and the oracle, the baseline first.

    `references` holds the oracle's answers to the requests of the first decisions of every arm, or the reason
    why there are none. The bound is the speed-up that sharing the prefix gives if time follows tokens; it is
    None when the baseline shares already. A row has `error`, or the measurements.
    """
    baseline = runs[0]
    measured = [run for run in runs if run.error is None]
    bound = None
    if measured and baseline.arm.settings["executor"] == "independent":
        bound = median([size.bound for size in measured[0].sizes])
    rows = [_row(baseline, run, bound, references, seed) for run in runs]
    return {"bound": None if bound is None else round(bound, _DECIMALS), "arms": rows}


def sizes(case: Case, requests: Sequence[SizedRequest]) -> dict[str, Any]:
    """The real token counts of a case's requests, each as [least, most]."""
    shared = [request.shared for request in requests]
    full = [total for request in requests for total in request.tokens]
    wanted = 0 if case.questions == 1 else case.prefix_tokens
    return {
        "number": len(requests),
        "shared_prefix_tokens": [min(shared), max(shared)],
        "full_question_tokens": [min(full), max(full)],
        "exact": set(shared) == {wanted} and set(full) == {case.prefix_tokens + case.question_tokens},
    }


def _row(
    baseline: ArmRun, run: ArmRun, bound: float | None, references: list[Probabilities] | str, seed: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": run.arm.name, "role": "baseline" if run is baseline else "candidate"}
    if run.error is None:
        # A result that cannot be told is a failure of this arm alone.
        with run.attempt("result"):
            row |= {**run.row(), "quality": _quality(run, references), "ratio": None}
            if run is not baseline and baseline.error is None:
                row |= _beside(baseline, run, bound, seed)
            return row
    return {**row, "settings": dict(run.arm.settings), "error": run.error}


def _beside(baseline: ArmRun, run: ArmRun, bound: float | None, seed: int) -> dict[str, Any]:
    ratio = paired_ratio(baseline.samples_ms, run.samples_ms, seed=seed)
    return {
        "ratio": _rounded(ratio),
        "ratio_of_best": round(min(baseline.samples_ms) / min(run.samples_ms), _DECIMALS),
        "bound_share": None if bound is None else round(ratio.median / bound, _DECIMALS),
    }


def _rounded(ratio: Ratio) -> dict[str, Any]:
    return {key: round(value, _DECIMALS) if isinstance(value, float) else value for key, value in asdict(ratio).items()}


def _quality(run: ArmRun, references: list[Probabilities] | str) -> dict[str, Any] | None:
    """Distance from the oracle, None when none was asked for, or the reason why it could not be told."""
    if isinstance(references, str):
        return {"error": references}
    if not references:
        return None
    try:
        found = [probabilities(decision) for decision in run.decisions[: len(references)]]
        return asdict(compare(references, found))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
