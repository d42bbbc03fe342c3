"""What every executor offers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jevify.accel.stages import StageTimer
from jevify.decide.plan import RequestPlan

# For each branch of a request, in order, the log-likelihood of each option up to a constant.
BranchScores = list[list[float]]


class Executor(Protocol):
    """Scores the options of tokenized requests. Holds no input-derived state between calls."""

    name: str

    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan in order. Time is charged to stages of `timer`."""
        ...

    def counters(self) -> Mapping[str, Any]:
        """Cumulative counters; `forward_calls` is always among them."""
        ...
