"""Splitting full questions at their shared prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jevify.decide.plan import Branch, common_length, share_prefix

pytestmark = pytest.mark.cpu


def test_branches_and_rows():
    branch = Branch((1, 2), ((5,), (5, 6, 7), (8, 9)))
    assert branch.leaves == ((5, 6), (8,))
    assert branch.rows == 4


def test_one_question_shares_nothing():
    plan = share_prefix([((1, 2, 3), ((4,),))])
    assert plan.prefix == ()
    assert plan.branches == (Branch((1, 2, 3), ((4,),)),)


def test_a_branch_keeps_a_token_when_one_question_begins_another():
    plan = share_prefix([((1, 2, 3), ((9,),)), ((1, 2, 3, 4), ((9,),))])
    assert plan.prefix == (1, 2)
    assert [branch.tokens for branch in plan.branches] == [(3,), (3, 4)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=5))
def test_every_full_question_is_prefix_plus_branch(questions):
    plan = share_prefix([(tokens, ((0,),)) for tokens in questions])
    assert [plan.prefix + branch.tokens for branch in plan.branches] == questions
    assert all(branch.tokens for branch in plan.branches)


@given(st.lists(st.lists(st.integers(0, 1), max_size=6).map(tuple), min_size=1, max_size=4))
def test_common_length_is_the_longest_shared_start(sequences):
    found = common_length(sequences)
    assert len({sequence[:found] for sequence in sequences}) == 1
    assert any(len(sequence) == found for sequence in sequences) or len({s[: found + 1] for s in sequences}) > 1
