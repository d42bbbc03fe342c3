"""Answers too close to call: a lead that precision and batch shape could overturn, and settling it."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.decide.drift import Drift
from jevify.decide.executors.base import BranchScores
from jevify.decide.plan import RequestPlan

SAFETY = 2.0
"""A lead of this many drifts or less is a near tie. A lead above the drift of its own question cannot be overturned;
the drift is the largest of a few probe questions, and another question may drift further than they did."""

# Scores of plans at the canonical shape: one question a forward, in fp32.
Settle = Callable[[Sequence[RequestPlan]], list[BranchScores]]


@dataclass(frozen=True)
class Verdict:
    """How close a question was. `lead` is in nats, before the temperature; None where there is but one option.

    `near_tie` is None while the drift is unknown. `settled`: the answer comes from the canonical shape.
    """

    lead: float | None
    near_tie: bool | None
    settled: bool = False

    def metadata(self) -> dict[str, Any]:
        """As the metadata of a question says it."""
        near_tie = "unknown" if self.near_tie is None else self.near_tie
        return {"lead": self.lead, "near_tie": near_tie, "settled": self.settled}


def lead(scores: Sequence[float]) -> float | None:
    """The best score minus the second best, in their unit; None for a single score."""
    if len(scores) == 1:
        return None
    best, second = heapq.nlargest(2, scores)
    return best - second


def verdict(scores: Sequence[float], drift: Drift | None) -> Verdict:
    """How close a question with these option scores was, on a path that drifts by `drift`, where that is known."""
    ahead = lead(scores)
    if ahead is None:
        return Verdict(None, False)
    return Verdict(ahead, None if drift is None else ahead <= SAFETY * drift.nats)


def settle_ties(
    plans: Sequence[RequestPlan], scores: list[BranchScores], verdicts: list[list[Verdict]], settle: Settle
) -> None:
    """Replace the scores and verdicts of near ties by those of `settle`, in place.

    The lead stays that of the path that found the tie, so that it can be held against the drift.
    """
    for plan, branches, found in zip(plans, scores, verdicts, strict=True):
        tied = [index for index, one in enumerate(found) if one.near_tie]
        if not tied:
            continue
        [settled] = settle([RequestPlan(plan.prefix, tuple(plan.branches[index] for index in tied))])
        for index, fresh in zip(tied, settled, strict=True):
            branches[index] = fresh
            found[index] = Verdict(found[index].lead, True, settled=True)


def drift_metadata(drift: Drift | None) -> dict[str, Any]:
    """As the metadata of a decision says it."""
    known = {"nats": None, "status": "unknown"} if drift is None else {"nats": drift.nats, "status": drift.status}
    return {**known, "safety": SAFETY}
