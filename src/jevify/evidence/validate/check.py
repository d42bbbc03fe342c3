"""One check: a measured value held against a threshold."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

# Called with the checks done, those in all, and the name of the next.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Check:
    """Something to measure. gate: the threshold of gates.toml that the value must not exceed."""

    name: str
    gate: str
    measure: Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """What a check found. A value that is no number, and an `error`, fail.

    least: whether `threshold` is the least value that passes, instead of the largest.
    """

    name: str
    value: float
    gate: str
    threshold: float
    least: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the gate holds."""
        if self.error is not None:
            return False
        return self.value >= self.threshold if self.least else self.value <= self.threshold

    def data(self) -> dict[str, Any]:
        """As JSON data; a value that is not finite is None."""
        value = self.value if math.isfinite(self.value) else None
        return {**asdict(self), "value": value, "seconds": round(self.seconds, 3), "passed": self.passed}


def run_checks(
    checks: Iterable[Check],
    thresholds: Any,
    *,
    progress: Progress = lambda done, total, name: None,
) -> list[Outcome]:
    """Run every check, whatever the others found. thresholds: an object with an attribute for each gate named."""
    checks = list(checks)
    outcomes = []
    for done, check in enumerate(checks):
        progress(done, len(checks), check.name)
        outcomes.append(_run(check, getattr(thresholds, check.gate)))
    progress(len(checks), len(checks), "")
    return outcomes


def _run(check: Check, threshold: float) -> Outcome:
    begin = time.perf_counter()
    value, error = math.nan, None
    try:
        value = float(check.measure())
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return Outcome(check.name, value, check.gate, threshold, seconds=time.perf_counter() - begin, error=error)
