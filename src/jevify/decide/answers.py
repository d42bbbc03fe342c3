"""From the probabilities of a question's options to its typed answer and confidence."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jevify.decide.questions import Choice, Noul, Question


def build_answer(question: Question, probabilities: Sequence[float]) -> dict[str, Any]:
    """Return the typed answer; `probabilities` align with `question.labels` and need not sum to 1.

    choice: type, choice, confidence, probabilities. noul: type, noul = P(yes), probabilities. score: type,
    score = the mean of zero-based levels, legend, probabilities, confidence. The first of options whose
    reported probabilities are equal wins. Raises ValueError for a wrong number of probabilities, and for
    negative, non-finite or all-zero ones.
    """
    if len(probabilities) != len(question.labels):
        raise ValueError(f"{len(probabilities)} probabilities for {len(question.labels)} options")
    p = normalized(probabilities)
    by_label = dict(zip(question.labels, p, strict=True))
    if isinstance(question, Choice):
        return {
            "type": "choice",
            "choice": top_label(by_label),
            "confidence": choice_confidence(p),
            "probabilities": by_label,
        }
    if isinstance(question, Noul):
        return {"type": "noul", "noul": by_label["yes"], "probabilities": by_label}
    return {
        "type": "score",
        "score": math.fsum(level * share for level, share in enumerate(p)),
        "legend": dict(zip(question.labels, question.criteria, strict=True)),
        "probabilities": by_label,
        "confidence": score_confidence(p),
    }


def top_label(probabilities: Mapping[str, float]) -> str:
    """The most probable label of an answer's `probabilities`; the first one wins a tie."""
    return max(probabilities, key=lambda label: probabilities[label])


def normalized(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities in float64 divided by their sum; raises ValueError as `build_answer` does."""
    p = [float(share) for share in probabilities]
    if not p:
        raise ValueError("no probabilities")
    if not all(math.isfinite(share) and share >= 0 for share in p):
        raise ValueError(f"probabilities must be finite and not negative: {p}")
    top = max(p)
    if top == 0:
        raise ValueError("all probabilities are zero")
    # Divided by the largest first, so that no sum overflows and no tiny sum loses its digits.
    scaled = [share / top for share in p]
    total = math.fsum(scaled)
    return [share / total for share in scaled]


def choice_confidence(probabilities: Sequence[float]) -> float:
    """Return (pmax - 1/K) / (1 - 1/K) of K normalized options: 0 when uniform, 1 when certain or alone."""
    p = normalized(probabilities)
    if len(p) == 1:
        return 1.0
    even = 1 / len(p)
    return _unit((max(p) - even) / (1 - even))


def score_confidence(probabilities: Sequence[float]) -> float:
    """Return max(0, 1 - sum(p_i |i - mode|) / u) of n normalized levels, and 1 of a single one.

    u = sum(|i - (n-1)/2|) / n, the mean distance of the levels from their middle.
    """
    p = normalized(probabilities)
    n, mode = len(p), _mode(p)
    if n == 1:
        return 1.0
    spread = math.fsum(share * abs(level - mode) for level, share in enumerate(p))
    even_spread = math.fsum(abs(level - (n - 1) / 2) for level in range(n)) / n
    return _unit(1 - spread / even_spread)


def _mode(p: Sequence[float]) -> int:
    return p.index(max(p))


def _unit(value: float) -> float:
    # Rounding may leave the range by an ulp.
    return min(1.0, max(0.0, value))
