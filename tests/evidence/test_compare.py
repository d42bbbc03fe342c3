"""Distances from the oracle, worked by hand."""

import math

import pytest

from jevify.decide.answers import top_label
from jevify.errors import JevifyError
from jevify.evidence.compare import Flip, compare, margin, probabilities

pytestmark = pytest.mark.cpu


def test_agreement_differences_and_flips_by_hand() -> None:
    oracle = [
        {"team": {"a": 0.5, "b": 0.3, "c": 0.2}, "refund": {"no": 0.48, "yes": 0.52}},
        {"team": {"a": 0.1, "b": 0.8, "c": 0.1}, "refund": {"no": 0.9, "yes": 0.1}},
    ]
    candidate = [
        {"team": {"a": 0.5, "b": 0.26, "c": 0.24}, "refund": {"no": 0.51, "yes": 0.49}},
        {"team": {"a": 0.1, "b": 0.8, "c": 0.1}, "refund": {"no": 0.9, "yes": 0.1}},
    ]
    found = compare(oracle, candidate)
    assert (found.decisions, found.questions, found.agreement) == (2, 4, 0.75)
    # Differences: 0, .04, .04, .03, .03, then five zeros.
    assert found.largest_difference == pytest.approx(0.04)
    assert found.median_difference == 0
    (flip,) = found.flips
    assert flip == Flip(0, "refund", "yes", "no", pytest.approx(0.04), pytest.approx(0.02))


def test_median_of_an_even_number_of_differences() -> None:
    found = compare([{"q": {"no": 0.4, "yes": 0.6}}], [{"q": {"no": 0.3, "yes": 0.5}}])
    assert found.median_difference == pytest.approx(0.1)
    found = compare([{"q": {"no": 0.5, "yes": 0.5}}], [{"q": {"no": 0.3, "yes": 0.1}}])
    assert found.median_difference == pytest.approx(0.3)


def test_first_label_wins_a_tie_and_one_label_leads_wholly() -> None:
    assert top_label({"x": 0.4, "y": 0.4, "z": 0.2}) == "x"
    assert margin({"x": 0.4, "y": 0.4, "z": 0.2}) == 0
    assert margin({"only": 1.0}) == 1


def test_probabilities_of_a_decision_keep_the_order_of_labels() -> None:
    decision = {"answers": {"q": {"noul": 0.3, "probabilities": {"no": 0.7, "yes": 0.3}}}}
    assert list(probabilities(decision)["q"].items()) == [("no", 0.7), ("yes", 0.3)]


def test_answers_without_a_distance_are_refused() -> None:
    good = [{"q": {"no": 0.4, "yes": 0.6}}]
    with pytest.raises(JevifyError, match="questions differ"):
        compare(good, [{"other": {"no": 0.4, "yes": 0.6}}])
    with pytest.raises(JevifyError, match="labels of q differ"):
        compare(good, [{"q": {"yes": 0.6, "no": 0.4}}])
    with pytest.raises(JevifyError, match="'yes' in q is nan"):
        compare(good, [{"q": {"no": 0.4, "yes": math.nan}}])
    with pytest.raises(JevifyError, match=r"is 1\.2, not a number from 0 to 1"):
        compare(good, [{"q": {"no": 0.4, "yes": 1.2}}])
    with pytest.raises(ValueError, match="0 oracle decisions"):
        compare([], [])
