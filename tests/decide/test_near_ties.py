"""Leads, what counts as a near tie, and settling."""

import pytest

from jevify.decide.drift import NO_DRIFT, Drift
from jevify.decide.near_ties import SAFETY, Verdict, drift_metadata, lead, settle_ties, verdict
from jevify.decide.plan import Branch, RequestPlan

pytestmark = pytest.mark.cpu
DRIFT = Drift(0.25, questions=9, shapes={"alone": 0.25})


@pytest.mark.parametrize(
    ("scores", "nats"),
    [([1.0, 3.0], 2.0), ([-5.0, -9.0, -5.5], 0.5), ([2.0, 2.0, 0.0], 0.0), ([7.0], None)],
)
def test_the_lead_is_best_minus_second(scores, nats):
    assert lead(scores) == nats


def test_a_near_tie_is_a_lead_of_two_drifts_or_less():
    assert SAFETY == 2
    assert verdict([0.5, 0.0], DRIFT) == Verdict(0.5, True)
    assert verdict([0.5, 0.0009765625, -8.0], DRIFT) == Verdict(0.4990234375, True)
    assert verdict([0.0, 0.5009765625], DRIFT) == Verdict(0.5009765625, False)


def test_one_option_cannot_tie_and_an_unknown_drift_says_so():
    assert verdict([1.0], None).metadata() == {"lead": None, "near_tie": False, "settled": False}
    assert verdict([1.0, 1.0], None).metadata() == {"lead": 0.0, "near_tie": "unknown", "settled": False}


def test_the_reference_ties_only_exactly():
    assert verdict([1.0, 1.0], NO_DRIFT).near_tie is True
    assert verdict([1.0, 0.9999], NO_DRIFT).near_tie is False


def test_only_near_ties_are_scored_again():
    branches = tuple(Branch((index,), ((10,), (11,))) for index in range(3))
    plans = [RequestPlan((7,), branches), RequestPlan((8,), branches[:1])]
    scores = [[[1.0, 0.0], [0.25, 0.0], [0.0, 0.125]], [[3.0, 0.0]]]
    verdicts = [[verdict(options, DRIFT) for options in one] for one in scores]
    asked = []

    def settle(tied):
        asked.extend(tied)
        return [[[0.0, float(branch.tokens[0])] for branch in plan.branches] for plan in tied]

    settle_ties(plans, scores, verdicts, settle)
    assert asked == [RequestPlan((7,), branches[1:])]
    assert scores == [[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], [[3.0, 0.0]]]
    assert [[one.settled for one in each] for each in verdicts] == [[False, True, True], [False]]
    assert verdicts[0][1] == Verdict(0.25, True, settled=True)


def test_metadata_of_the_drift():
    assert drift_metadata(DRIFT) == {"nats": 0.25, "status": "measured", "safety": 2.0}
    assert drift_metadata(None) == {"nats": None, "status": "unknown", "safety": 2.0}
    assert drift_metadata(NO_DRIFT) == {"nats": 0.0, "status": "none", "safety": 2.0}
