"""The drift of a path: the largest change of a score difference, over probes in several batch shapes."""

import math

import pytest

from jevify.decide.drift import CONTEXTS, NEIGHBOURS, NO_DRIFT, PROBES, measure, spread
from jevify.errors import JevifyError

pytestmark = pytest.mark.cpu


def scorer(error=lambda asked, requests: 0.0):
    """Scores that count down from 9 in steps of 1, the first option of each question moved by `error`."""

    def score(requests):
        return [
            [
                [9.0 - option + (error(questions, requests) if option == 0 else 0) for option in range(len(one.labels))]
                for one in questions.values()
            ]
            for _, questions in requests
        ]

    return score


@pytest.mark.parametrize(
    ("ours", "theirs", "nats"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [11.0, 12.0], 0.0),
        ([1.5, 2.0], [1.0, 2.0], 0.5),
        ([1.5, 1.75, 2.0], [1.0, 2.0, 2.0], 0.75),
        ([3.0], [1.0], 0.0),
    ],
)
def test_a_constant_is_no_drift(ours, theirs, nats):
    assert spread(ours, theirs) == nats


def test_every_batch_shape_is_measured_and_the_largest_counts():
    crowded = len(PROBES) + len(NEIGHBOURS)
    moved = {1: 0.125, len(PROBES): 0.25, crowded: -0.5}
    drift = measure(scorer(lambda questions, _: moved[len(questions)]), scorer())
    assert drift.shapes == {"alone": 0.125, "together": 0.25, "shared": 0.25, "crowded": 0.5}
    assert (drift.nats, drift.questions, drift.status) == (0.5, len(PROBES) * len(CONTEXTS), "measured")


def test_requests_that_share_a_call_are_a_shape_of_their_own():
    drift = measure(scorer(lambda _, requests: 0.25 if len(requests) > 1 else 0.0), scorer())
    assert drift.shapes == {"alone": 0.0, "together": 0.0, "shared": 0.25, "crowded": 0.25}


def test_neighbours_are_not_measured_but_probes_behind_them_are():
    def score(requests):
        return [
            [[9.0 - option for option in range(len(one.labels))] if name in PROBES else [math.nan, 0.0]
             for name, one in questions.items()]
            for _, questions in requests
        ]  # fmt: skip

    assert measure(score, scorer()).nats == 0


def test_scores_that_are_not_finite_have_no_drift():
    with pytest.raises(JevifyError, match=r"not finite .* try --dtype float32"):
        measure(scorer(lambda *_: math.inf), scorer())


def test_the_probes_are_every_type_and_every_length():
    assert {question.type for question in PROBES.values()} == {"choice", "noul", "score"}
    words = [len(context.split()) for context in CONTEXTS]
    assert words[0] < 10 < words[1] < 100 < words[2]
    assert not PROBES.keys() & NEIGHBOURS.keys()


def test_the_reference_has_none():
    assert (NO_DRIFT.nats, NO_DRIFT.status) == (0, "none")
