"""The result of a request."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from jevify.decide.answers import build_answer
from jevify.decide.questions import Question
from jevify.errors import JevifyError

UNCALIBRATED = "uncalibrated answer-token probabilities"


class Decision(TypedDict):
    """What `decide` returns: a plain JSON-ready mapping.

    answers: by question id, as `build_answer` makes them. probability_status: what the probabilities mean. metadata:
    how they were computed.
    """

    model: str
    answers: dict[str, dict[str, Any]]
    probability_status: str
    metadata: dict[str, Any]


def probabilities(scores: Sequence[float], temperature: float) -> list[float]:
    """softmax(scores / temperature) in fp64. Raises JevifyError when a score is not finite."""
    if not all(map(math.isfinite, scores)):
        raise JevifyError(f"the model gave scores that are not finite ({scores}); try --dtype float32")
    top = max(scores)
    weights = [math.exp((score - top) / temperature) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def answers_of(
    questions: Mapping[str, Question], scores: Sequence[Sequence[float]], temperature: float
) -> dict[str, dict[str, Any]]:
    """Answers by question id from the option scores of each question, in order."""
    return {
        name: build_answer(question, probabilities(options, temperature))
        for (name, question), options in zip(questions.items(), scores, strict=True)
    }
