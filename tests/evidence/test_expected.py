"""What arms need, by arithmetic done by hand."""

import pytest

from jevify.decide.settings import DecideSettings
from jevify.evidence.expected import RequestSize, expected_forward_calls

pytestmark = pytest.mark.cpu


def size(questions: int, shared: int = 250, total: int = 330, paths: tuple[int, ...] = (1, 1)) -> RequestSize:
    return RequestSize(shared, (total,) * questions, (paths,) * questions)


@pytest.mark.parametrize(
    ("questions", "shared", "bound"),
    # N (P + Q) / (P + N Q) at P = 250 and Q = 80.
    [(1, 0, 1.0), (4, 250, 1320 / 570), (28, 250, 9240 / 2490)],
)
def test_bound_of_single_token_options(questions: int, shared: int, bound: float) -> None:
    assert size(questions, shared).bound == pytest.approx(bound)


def test_options_of_several_tokens_are_forwards_of_their_own_or_leaves() -> None:
    # Two questions of 100 tokens behind 60; options of 1, 2 and 4 tokens feed 0, 1 and 3 rows more.
    request = size(2, 60, 100, (1, 2, 4))
    assert request.independent_tokens == 2 * (100 + 101 + 103)
    assert request.packed_tokens == 60 + 2 * (40 + 1 + 3)
    assert expected_forward_calls(request, DecideSettings(executor="independent")) == 6
    # One prefix, and four rows: a question with two longer options takes a row for each.
    assert expected_forward_calls(request, DecideSettings(executor="forked", branch_batch_size=3)) == 3


@pytest.mark.parametrize(("questions", "shared", "calls"), [(1, 0, 1), (4, 250, 2), (8, 250, 2), (28, 250, 5)])
def test_forked_runs_the_prefix_and_batches_of_eight(questions: int, shared: int, calls: int) -> None:
    assert expected_forward_calls(size(questions, shared), DecideSettings(executor="forked")) == calls


def test_packed_is_one_forward_where_the_rows_fit_the_budget() -> None:
    fits = DecideSettings(executor="packed", token_budget=570)
    too_small = DecideSettings(executor="packed", token_budget=569)
    assert expected_forward_calls(size(4), fits) == 1
    assert expected_forward_calls(size(4), too_small) is None
