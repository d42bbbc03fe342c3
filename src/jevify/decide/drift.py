"""How far an execution path strays from the fp32 oracle: probe questions, run in several batch shapes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jevify.decide.executors.base import BranchScores
from jevify.decide.questions import Choice, Noul, Question, Score
from jevify.errors import JevifyError

Questions = Mapping[str, Question]
Requests = Sequence[tuple[Any, Questions]]
# Option scores of every question of every request of one call, in order.
ScoreAll = Callable[[Requests], list[BranchScores]]

CONTEXTS = (
    "The parcel arrived late.",
    "I was charged twice for the same order, and the second charge has not been returned after nine days. The person "
    "on the phone was polite but could not tell me who decides about it.",
    " ".join(
        f"Entry {day}: the pump ran for {3 + day % 5} hours, the pressure was {'steady' if day % 3 else 'low'}, and "
        f"the operator {'noted nothing' if day % 2 else 'heard a noise from the valve and left it closed'}."
        for day in range(1, 10)
    ),
)
"""What the probes are about: a line, a paragraph, a page."""

PROBES: Questions = {
    "topic": Choice(instructions="What is it about?", criteria={"money": None, "goods": None, "machine": "a device"}),
    "unhappy": Noul(instructions="Is somebody unhappy?"),
    "urgency": Score(instructions="How urgent is it?", criteria=["It can wait", "Soon", "At once"]),
}
"""One question of each type."""

NEIGHBOURS: Questions = {
    "formal": Noul(instructions="Is the text formal?"),
    "tone": Choice(instructions="Which tone does it have?", criteria=["calm", "angry", "ironic", "sad", "cheerful"]),
    "length": Score(instructions="How long is it?", criteria=["A line", "A paragraph", "A page"]),
    "past": Noul(instructions="Does it speak of the past?"),
}
"""What shares a batch with the probes in the fullest shape."""


@dataclass(frozen=True)
class Drift:
    """The largest change of a difference between two option scores of one question, in nats.

    `shapes` holds the same for each batch shape, over `questions` probe questions. status "none": the path is the
    reference itself.
    """

    nats: float
    questions: int = 0
    shapes: Mapping[str, float] = field(default_factory=dict)
    status: Literal["measured", "none"] = "measured"


NO_DRIFT = Drift(0.0, status="none")
"""Of the fp32 oracle, one question a forward."""


def measure(score: ScoreAll, oracle: ScoreAll) -> Drift:
    """Run the probes on a path, `score`, in four batch shapes, and hold them against `oracle`.

    alone: one question a call. together: one context a call. shared: all contexts in one call. crowded: the same with
    other questions before each probe. Raises JevifyError when a score is not finite: such scores have no distance.
    """
    probes = [(context, PROBES) for context in CONTEXTS]
    wanted = [scores for context in CONTEXTS for scores in _alone(oracle, context)]
    crowd = [(context, {**NEIGHBOURS, **PROBES}) for context in CONTEXTS]
    found = {
        "alone": [scores for context in CONTEXTS for scores in _alone(score, context)],
        "together": [scores for request in probes for scores in score([request])[0]],
        "shared": [scores for branches in score(probes) for scores in branches],
        "crowded": [scores for branches in score(crowd) for scores in branches[len(NEIGHBOURS) :]],
    }
    shapes = {
        shape: max(spread(ours, theirs) for ours, theirs in zip(scores, wanted, strict=True))
        for shape, scores in found.items()
    }
    return Drift(max(shapes.values()), questions=len(wanted), shapes=shapes)


def spread(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest change of a difference between two of a question's scores. Raises JevifyError if one is not finite.

    Each list holds the same options, up to a constant of its own.
    """
    if not all(map(math.isfinite, (*ours, *theirs))):
        raise JevifyError(
            f"the drift cannot be measured: the model gave scores that are not finite ({list(ours)}, the fp32 oracle "
            f"{list(theirs)}); try --dtype float32"
        )
    errors = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    return max(errors) - min(errors)


def _alone(score: ScoreAll, context: str) -> BranchScores:
    return [score([(context, {name: question})])[0][0] for name, question in PROBES.items()]
