"""The noise floor of a baseline: how far it is from itself, in time and in its answers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jevify.evidence.arm import ArmRun, timed
from jevify.evidence.compare import Probabilities, compare, probabilities
from jevify.evidence.kinds.base import Clock
from jevify.evidence.stats import paired_ratio
from jevify.evidence.workload import SizedRequest

# Enough to see the noise; the slowest baseline takes half a second a decision.
PAIRS = 5
_DECIMALS = 4


def noise_floor(
    baseline: ArmRun, timed_requests: Sequence[SizedRequest], judged: int, clock: Clock, seed: int
) -> dict[str, Any]:
    """The baseline's time over its own, run twice on the same requests, and its answers at another batch shape.

    judged: the first so many of `timed_requests` are those that `baseline.decisions` answer. Failures are kept under
    `error`.
    """
    try:
        pairs = [
            (timed(baseline.engine, request, clock)[0], timed(baseline.engine, request, clock)[0])
            for request in timed_requests[:PAIRS]
        ]
        ratio = paired_ratio([first for first, _ in pairs], [second for _, second in pairs], seed=seed)
        shape, engine = _other_shape(baseline)
        own = [probabilities(decision) for decision in baseline.decisions[:judged]]
        other = [_answers(engine, request, shape) for request in timed_requests[:judged]]
        return {
            "time_ratio": {name: _rounded(getattr(ratio, name)) for name in ("median", "low", "high", "pairs")},
            "shape": shape,
            "quality": asdict(compare(own, other)) if judged else None,
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


_TWICE = "the request twice in one pass"


def _other_shape(baseline: ArmRun) -> tuple[str, Any]:
    executor = baseline.arm.settings["executor"]
    if executor == "independent":
        from jevify.evidence.rivals import BatchExecutor

        return "all questions in one padded batch", baseline.engine.with_executor(BatchExecutor)
    if executor == "forked":
        size = 1 if baseline.engine.settings.branch_batch_size > 1 else 8
        return f"branch batches of {size}", baseline.engine.with_settings(executor=executor, branch_batch_size=size)
    return _TWICE, baseline.engine


def _answers(engine: Any, request: SizedRequest, shape: str) -> Probabilities:
    asked = (request.context, request.questions)
    return probabilities(engine.decide_many([asked, asked])[0] if shape == _TWICE else engine.decide(*asked))


def _rounded(value: float | int) -> float | int:
    return round(value, _DECIMALS)
