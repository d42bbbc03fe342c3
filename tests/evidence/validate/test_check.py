"""What passes a check, and what a failing one leaves behind."""

import math
from types import SimpleNamespace

import pytest

from jevify.evidence.validate.check import Check, Outcome, run_checks

pytestmark = pytest.mark.cpu


def raises() -> float:
    raise ValueError("the labels differ")


def test_every_check_runs_and_is_held_against_its_own_gate():
    checks = [
        Check("at the bound", "small", lambda: 0.5),
        Check("broken", "small", raises),
        Check("above", "small", lambda: 0.6),
        Check("no number", "large", lambda: math.nan),
        Check("below", "large", lambda: 3.0),
    ]
    told = []
    found = run_checks(
        checks,
        SimpleNamespace(small=0.5, large=4.0),
        progress=lambda done, total, name: told.append((done, total, name)),
    )
    assert [outcome.passed for outcome in found] == [True, False, False, False, True]
    assert found[1].error == "ValueError: the labels differ"
    assert [outcome.threshold for outcome in found] == [0.5, 0.5, 0.5, 4.0, 4.0]
    assert told == [
        (0, 5, "at the bound"),
        (1, 5, "broken"),
        (2, 5, "above"),
        (3, 5, "no number"),
        (4, 5, "below"),
        (5, 5, ""),
    ]


def test_an_agreement_has_a_least_value():
    assert Outcome("agreement", 0.99, "least_agreement", 0.99, least=True).passed
    assert not Outcome("agreement", 0.98, "least_agreement", 0.99, least=True).passed
    assert not Outcome("agreement", 1.0, "least_agreement", 0.99, least=True, error="no decision").passed


def test_data_holds_no_number_that_json_cannot():
    found = Outcome("distance", math.inf, "hidden_state", 1e-5).data()
    assert (found["value"], found["passed"]) == (None, False)
