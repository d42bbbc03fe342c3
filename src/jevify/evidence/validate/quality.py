"""Label quality on a labelled sample: whether answers are right, kept apart from whether they moved.

In plain Python: scikit-learn's scores want one set of classes for all rows, where each question brings its own labels,
and torchmetrics would add a package for a dozen lines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jevify.decide.answers import top_label
from jevify.decide.request import Combined
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

SAMPLE = Path("benchmarks/data/sample.jsonl")
BINS = 10


@dataclass(frozen=True)
class Labelled:
    """One row of a sample."""

    context: Any
    workflow: Workflow
    expected: Mapping[str, str]


@dataclass(frozen=True)
class LabelQuality:
    """Over all labelled questions.

    accuracy: share whose most probable label is right. nll: mean -log p of the right label. brier: mean over questions
    of the squared distances of the labels' probabilities from 0 and 1, summed (Brier 1950). ece: the mean gap of
    confidence and accuracy over ten bins of equal width of the top probability (Guo et al. 2017, arXiv:1706.04599).
    """

    questions: int
    accuracy: float
    nll: float
    brier: float
    ece: float


def read_sample(path: Path, rows: int | None = None) -> list[Labelled]:
    """The labelled rows of a JSON-lines file; with `rows`, that many spread evenly over it. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if rows is not None and rows < len(numbered):
        numbered = [numbered[index * len(numbered) // rows] for index in range(rows)]
    found = []
    for number, line in numbered:
        combined = Combined.parse(line, f"{path}, line {number}")
        context, workflow = combined.resolve()
        if not combined.expected_labels:
            raise InputError(f"{path}, line {number}: has no expected_labels; every row of a sample needs them")
        found.append(Labelled(context, workflow, combined.expected_labels))
    if not found:
        raise InputError(f"{path}: has no rows")
    return found


def label_quality(rows: Sequence[Labelled], decisions: Sequence[Mapping[str, Any]]) -> LabelQuality:
    """How right `decisions` are about `rows`, in order. A right label of probability zero makes nll infinite."""
    answers = [
        (decision["answers"][name]["probabilities"], label)
        for row, decision in zip(rows, decisions, strict=True)
        for name, label in row.expected.items()
    ]
    right = [top_label(shares) == label for shares, label in answers]
    count = len(answers)
    return LabelQuality(
        questions=count,
        accuracy=sum(right) / count,
        nll=math.fsum(-math.log(shares[label]) if shares[label] else math.inf for shares, label in answers) / count,
        brier=math.fsum((share - (name == label)) ** 2 for shares, label in answers for name, share in shares.items())
        / count,
        ece=_calibration_error([max(shares.values()) for shares, _ in answers], right),
    )


def _calibration_error(confidences: Sequence[float], right: Sequence[bool]) -> float:
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, correct in zip(confidences, right, strict=True):
        bins.setdefault(min(int(confidence * BINS), BINS - 1), []).append((confidence, correct))
    gaps = [abs(math.fsum(confidence - correct for confidence, correct in members)) for members in bins.values()]
    return math.fsum(gaps) / len(confidences)
