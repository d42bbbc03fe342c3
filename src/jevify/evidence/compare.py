"""How far a candidate's answers are from the oracle's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.decide.answers import top_label
from jevify.errors import JevifyError

# Of one decision: question id -> label -> probability, labels in the order of the question.
Probabilities = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Flip:
    """A question whose most probable label is not the oracle's.

    `request` is the index of the decision it belongs to. A margin is the lead of the first label over the
    second, 0 to 1.
    """

    request: int
    question: str
    oracle_label: str
    candidate_label: str
    oracle_margin: float
    candidate_margin: float


@dataclass(frozen=True)
class Comparison:
    """Agreement over all questions of all decisions.

    `agreement` is the share of questions with the oracle's label. The differences are absolute differences of
    probability, over every label of every question.
    """

    decisions: int
    questions: int
    agreement: float
    largest_difference: float
    median_difference: float
    flips: tuple[Flip, ...]


def compare(oracle: Sequence[Probabilities], candidate: Sequence[Probabilities]) -> Comparison:
    """Compare decisions pair by pair; the first label wins a tie.

    Raises JevifyError when they do not answer the same questions with the same labels, or when a probability
    is not a number from 0 to 1: such answers have no distance. Raises ValueError when there is nothing to
    compare.
    """
    if not oracle or len(oracle) != len(candidate):
        raise ValueError(f"{len(oracle)} oracle decisions cannot be compared with {len(candidate)}")
    differences: list[float] = []
    flips: list[Flip] = []
    questions = 0
    for index, (expected, found) in enumerate(zip(oracle, candidate, strict=True)):
        _require_same("questions", expected, found)
        for question, reference in expected.items():
            questions += 1
            answer = found[question]
            _require_same(f"labels of {question}", reference, answer)
            _require_probabilities(question, reference, answer)
            differences += [abs(reference[label] - answer[label]) for label in reference]
            if top_label(reference) != top_label(answer):
                flips.append(
                    Flip(
                        index,
                        question,
                        top_label(reference),
                        top_label(answer),
                        margin(reference),
                        margin(answer),
                    )
                )
    ordered = sorted(differences)
    middle = len(ordered) // 2
    return Comparison(
        decisions=len(oracle),
        questions=questions,
        agreement=1 - len(flips) / questions,
        largest_difference=ordered[-1],
        median_difference=(ordered[middle] + ordered[~middle]) / 2,
        flips=tuple(flips),
    )


def probabilities(decision: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The label probabilities of every question of an engine's decision, in the order of the labels."""
    return {name: dict(answer["probabilities"]) for name, answer in decision["answers"].items()}


def margin(answer: Mapping[str, float]) -> float:
    """The lead of the most probable label over the next one; 1 when there is only one."""
    if len(answer) == 1:
        return 1.0
    first, second = sorted(answer.values(), reverse=True)[:2]
    return first - second


def _require_same(what: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    if list(expected) != list(found):
        raise JevifyError(f"the {what} differ: the oracle has {list(expected)}, the candidate {list(found)}")


def _require_probabilities(question: str, *answers: Mapping[str, float]) -> None:
    for answer in answers:
        for label, value in answer.items():
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise JevifyError(f"the probability of {label!r} in {question} is {value}, not a number from 0 to 1")
