"""What is stored of a case beside its arms' own rows: sizes, ratios, the bound, distance from the oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jevify.evidence.arm import ArmRun
from jevify.evidence.compare import Probabilities, compare, probabilities
from jevify.evidence.floor import Floor
from jevify.evidence.kinds.base import Case
from jevify.evidence.stats import Ratio, median, paired_ratio
from jevify.evidence.workload import SizedRequest

_DECIMALS = 4


def compared(
    runs: Sequence[ArmRun], references: list[Probabilities] | str, floor: Floor | None, seed: int
) -> dict[str, Any]:
    """The bound, and the rows of a case's arms beside the baseline and the oracle, the baseline first.

    `references` holds the oracle's answers to the requests of the first decisions of every arm, or the reason
    why there are none. The bound is the speed-up that sharing the prefix gives if time follows tokens; it is
    None when the baseline shares already. A row has `error`, or the measurements, or both where
    they are not proven; beside a floor, how many times it the
    median of the decision is, and that of the GPU time where the engine tells it.
    """
    baseline = runs[0]
    measured = [run for run in runs if run.error is None]
    bound = None
    if measured and baseline.arm.settings["executor"] == "independent":
        bound = median([size.bound for size in measured[0].sizes])
    rows = [_row(baseline, run, bound, references, seed) for run in runs]
    if floor is not None:
        for row in rows:
            row |= _over(floor, row)
    return {
        "bound": None if bound is None else round(bound, _DECIMALS),
        "floor": None if floor is None else floor.data(),
        "arms": rows,
    }


def case_name(case: Mapping[str, Any]) -> str:
    """A case in a few characters: questions, prefix tokens and question tokens."""
    return f"N={case['questions']} P={case['prefix_tokens']} Q={case['question_tokens']}"


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
            return row if run.unproven is None else {**row, "error": run.unproven}
    return {**row, "settings": dict(run.arm.settings), "error": run.error}


def _over(floor: Floor, row: dict[str, Any]) -> dict[str, float]:
    if "error" in row:
        return {}
    found = {"times_floor": round(row["median_ms"] / floor.ms, _DECIMALS)}
    if (device := row["stages_median_ms"].get("device")) is not None:
        found["gpu_times_floor"] = round(device / floor.ms, _DECIMALS)
    return found


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
        return {**asdict(compare(references, found)), "differences": _differences(references, found)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _differences(references: Sequence[Probabilities], found: Sequence[Probabilities]) -> list[float]:
    """The absolute difference of every probability, to three significant digits."""
    return [
        float(f"{abs(value - answers[question][label]):.2e}")
        for reference, answers in zip(references, found, strict=True)
        for question, labels in reference.items()
        for label, value in labels.items()
    ]
