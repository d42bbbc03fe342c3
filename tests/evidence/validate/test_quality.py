"""Label quality of three answers worked out by hand."""

import math
from pathlib import Path

import pytest

from jevify.decide.workflow import Workflow
from jevify.errors import InputError
from jevify.evidence.validate.quality import SAMPLE, Labelled, label_quality, read_sample

pytestmark = pytest.mark.cpu
QUESTION = {"q": {"type": "choice", "instructions": "?", "criteria": ["a", "b"]}}


def rows(*labels: str) -> list[Labelled]:
    return [Labelled("text", Workflow.parse({"questions": QUESTION}), {"q": label}) for label in labels]


def decided(*shares: float) -> list[dict]:
    return [{"answers": {"q": {"probabilities": {"a": share, "b": 1 - share}}}} for share in shares]


def test_three_answers():
    found = label_quality(rows("a", "b", "a"), decided(0.75, 0.75, 0.25))
    assert found.questions == 3
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.nll == pytest.approx((-math.log(0.75) - math.log(0.25) - math.log(0.25)) / 3)
    assert found.brier == pytest.approx(2 * (0.25**2 + 0.75**2 + 0.75**2) / 3)
    # One bin: confidence 0.75 everywhere, one of three right.
    assert found.ece == pytest.approx(0.75 - 1 / 3)


def test_bins_do_not_cancel_and_certainty_has_one():
    found = label_quality(rows("a", "b"), decided(1.0, 0.6))
    assert found.ece == pytest.approx((0.0 + 0.6) / 2)


def test_a_right_label_without_probability():
    assert label_quality(rows("b"), decided(1.0)).nll == math.inf


def test_the_sample_of_this_repository_and_a_part_of_it():
    everything = read_sample(SAMPLE)
    assert len(everything) == 165
    some = read_sample(SAMPLE, 11)
    assert [row.context for row in some] == [everything[15 * index].context for index in range(11)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "has no rows"),
        (
            '{"context": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}',
            "line 1: has no expected_labels",
        ),
        ("{", "line 1"),
    ],
)
def test_what_a_sample_must_hold(tmp_path: Path, text: str, message: str):
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_sample(file)
