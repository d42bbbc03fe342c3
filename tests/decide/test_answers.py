import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jevify.decide.answers import build_answer, choice_confidence, normalized, score_confidence
from jevify.decide.questions import Choice, Noul, Score

pytestmark = pytest.mark.cpu

shares = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40).filter(lambda p: max(p) > 1e-3)


def close(value):
    return pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "confidence"),
    [
        ([0.82, 0.18], 0.64),
        ([0.6, 0.3, 0.1], 0.4),
        ([1.0], 1.0),
        ([0.5, 0.5], 0.0),
        ([0.0, 1.0], 1.0),
        ([1 / 3, 1 / 3, 1 / 3], 0.0),
        ([0.4, 0.2, 0.2, 0.2], 0.2),  # (.4 - .25) / .75
        ([8.2, 1.8], 0.64),
    ],
)
def test_choice_confidence(p, confidence):
    assert choice_confidence(p) == close(confidence)


@pytest.mark.parametrize(
    ("p", "confidence"),
    [
        ([0.01, 0.02, 0.07, 0.3, 0.6], 0.55),
        ([1.0], 1.0),
        ([0.0, 1.0], 1.0),
        ([0.7, 0.3], 0.4),  # u = 1/2, spread .3
        ([0.5, 0.5], 0.0),  # the first level is the mode: spread 1/2 = u
        ([0.25, 0.5, 0.25], 0.25),  # u = 2/3, spread 1/2
        ([1 / 3, 1 / 3, 1 / 3], 0.0),  # mode 0: spread 1 > u
        ([0.5, 0.0, 0.5], 0.0),
        ([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 1.0),
        ([0.1, 0.1, 0.6, 0.1, 0.1], 0.5),  # u = 6/5, spread .6
        ([0.9] + [0.0] * 98 + [0.1], 1 - 9.9 / 25),  # u = 100/4
    ],
)
def test_score_confidence(p, confidence):
    assert score_confidence(p) == close(confidence)


def test_choice_answer():
    answer = build_answer(Choice(criteria=["a", "b", "c"]), [3, 6, 1])
    assert list(answer) == ["type", "choice", "confidence", "probabilities"]
    assert answer["type"] == "choice"
    assert answer["choice"] == "b"
    assert answer["confidence"] == close(0.4)
    assert answer["probabilities"] == close({"a": 0.3, "b": 0.6, "c": 0.1})
    assert list(answer["probabilities"]) == ["a", "b", "c"]


def test_noul_answer_is_the_probability_of_yes():
    answer = build_answer(Noul(), [0.2, 0.6])
    assert answer == {"type": "noul", "noul": close(0.75), "probabilities": close({"no": 0.25, "yes": 0.75})}
    assert list(answer) == ["type", "noul", "probabilities"]


def test_score_answer_is_the_mean_level():
    levels = ["none", "low", "mid", "high", "max"]
    answer = build_answer(Score(criteria=levels), [0.01, 0.02, 0.07, 0.3, 0.6])
    assert list(answer) == ["type", "score", "legend", "probabilities", "confidence"]
    assert answer["type"] == "score"
    assert answer["score"] == close(3.46)  # .02 + .14 + .9 + 2.4
    assert answer["legend"] == {"0": "none", "1": "low", "2": "mid", "3": "high", "4": "max"}
    assert answer["probabilities"] == close({"0": 0.01, "1": 0.02, "2": 0.07, "3": 0.3, "4": 0.6})
    assert answer["confidence"] == close(0.55)


def test_a_single_option_is_certain():
    assert build_answer(Choice(criteria=["only"]), [1e-30]) == {
        "type": "choice",
        "choice": "only",
        "confidence": 1.0,
        "probabilities": {"only": 1.0},
    }
    assert build_answer(Score(criteria=["only"]), [7]) == {
        "type": "score",
        "score": 0.0,
        "legend": {"0": "only"},
        "probabilities": {"0": 1.0},
        "confidence": 1.0,
    }


def test_the_first_of_equals_wins():
    assert build_answer(Choice(criteria=["a", "b", "c"]), [0.2, 0.4, 0.4])["choice"] == "b"
    assert score_confidence([0.2, 0.4, 0.4]) == close(0.1)  # mode 1: 1 - .6 / (2/3); mode 2 would give 0


def test_extreme_magnitudes_keep_their_ratio():
    tiny, huge = 5e-324, 1.5e308
    assert normalized([tiny, tiny]) == [0.5, 0.5]
    assert normalized([huge, huge, huge, huge]) == [0.25] * 4
    assert normalized([0.0, tiny]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        ([0.5, math.nan], "finite"),
        ([0.5, math.inf], "finite"),
        ([-0.1, 1.1], "negative"),
        ([0.0, 0.0], "zero"),
        ([1.0], "1 probabilities for 2 options"),
        ([0.2, 0.3, 0.5], "3 probabilities for 2 options"),
        ([], "0 probabilities for 2 options"),
    ],
)
@pytest.mark.parametrize("question", [Noul(), Choice(criteria=["a", "b"]), Score(criteria=["a", "b"])])
def test_refused_probabilities(question, p, reason):
    with pytest.raises(ValueError, match=reason):
        build_answer(question, p)


@pytest.mark.parametrize("confidence", [choice_confidence, score_confidence])
def test_no_probabilities_at_all(confidence):
    with pytest.raises(ValueError, match="no probabilities"):
        confidence([])


@given(shares)
def test_the_choice_is_the_first_of_the_largest_reported(p):
    answer = build_answer(Choice(criteria=[f"l{index}" for index in range(len(p))]), p)
    reported = list(answer["probabilities"].values())
    assert answer["choice"] == f"l{reported.index(max(reported))}"


@given(shares)
def test_ranges(p):
    question = Score(criteria=["level"] * len(p))
    answer = build_answer(question, p)
    assert sum(answer["probabilities"].values()) == close(1)
    assert all(0 <= share <= 1 for share in answer["probabilities"].values())
    assert 0 <= answer["confidence"] <= 1
    assert -1e-9 <= answer["score"] <= len(p) - 1 + 1e-9
    assert 0 <= choice_confidence(p) <= 1


@given(shares, st.randoms(use_true_random=False))
def test_choice_confidence_does_not_depend_on_order_or_scale(p, random):
    mixed = random.sample(p, len(p))
    assert choice_confidence(mixed) == pytest.approx(choice_confidence(p), abs=1e-9)
    assert choice_confidence([share * 2 for share in p]) == choice_confidence(p)


# Whole numbers, so that no two shares are so near that dividing by the sum makes them equal.
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(lambda p: max(p) and p.count(max(p)) == 1))
def test_reversing_the_scale_keeps_the_confidence_and_mirrors_the_score(p):
    question = Score(criteria=["level"] * len(p))
    there, back = build_answer(question, p), build_answer(question, p[::-1])
    assert back["confidence"] == pytest.approx(there["confidence"], abs=1e-9)
    assert back["score"] == pytest.approx(len(p) - 1 - there["score"], abs=1e-9)


@given(st.integers(1, 255), st.data())
def test_certainty_is_certain(count, data):
    level = data.draw(st.integers(0, count - 1))
    p = [float(index == level) for index in range(count)]
    answer = build_answer(Score(criteria=["level"] * count), p)
    assert (answer["score"], answer["confidence"]) == (level, 1.0)
    assert choice_confidence(p) == 1.0
