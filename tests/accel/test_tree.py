"""Packing against what each token should see, one path at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jevify.accel.ops.tree_attention import plan_calls
from jevify.accel.tree import SIBLING_ROWS, TokenTree
from token_trees import seen_by_path, trees

pytestmark = pytest.mark.cpu


def seen_by_passes(tree, budget):
    """For every token tag, the tags it sees in the packed passes, and its position."""
    carried: list[int] = []
    seen, positions = {}, {}
    for step in tree.passes(budget):
        assert len(step.token_ids) <= budget
        assert step.carried == len(carried)
        keys = carried + list(step.token_ids)
        covered = []
        for call in plan_calls(step.blocks, step.carried, torch.device("cpu"), torch.float32):
            slots = torch.arange(len(keys))[call.slots]
            rows = call.stop - call.start
            mask = torch.ones(rows, rows).tril().bool() if call.mask is None else call.mask == 0
            assert mask.shape == (rows, len(slots))
            for row in range(rows):
                token = step.token_ids[call.start + row]
                seen[token] = [keys[slot] for slot in slots[mask[row]].tolist()]
                positions[token] = step.positions[call.start + row]
            covered += range(call.start, call.stop)
        assert covered == list(range(len(step.token_ids)))
        carried = [keys[slot] for slot in step.keep]
    assert carried == []
    return seen, positions


@settings(max_examples=300, deadline=None)
@given(trees(), st.integers(1, 40))
def test_each_token_sees_exactly_its_own_path(tree, budget):
    seen, positions = seen_by_passes(tree, budget)
    expected = seen_by_path(tree)
    assert seen == expected
    assert positions == {token: len(path) - 1 for token, path in expected.items()}


@settings(max_examples=100, deadline=None)
@given(trees())
def test_a_large_budget_takes_one_pass(tree):
    (step,) = tree.passes(len(tree))
    assert sorted(step.token_ids) == list(range(len(tree)))
    assert step.keep == ()


def test_a_segment_that_fits_a_pass_is_not_cut():
    tree = TokenTree()
    root = tree.add(range(6))
    tree.add(range(6, 12), root)
    passes = tree.passes(8)
    assert [[(piece.segment, piece.length) for piece in step.pieces] for step in passes] == [
        [(0, 6)],
        [(1, 6)],
    ]
    assert passes[0].keep == (0, 1, 2, 3, 4, 5)


def test_a_longer_segment_is_cut_at_the_budget():
    tree = TokenTree()
    tree.add(range(10))
    assert [step.token_ids for step in tree.passes(4)] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


def test_finished_branches_are_not_carried():
    tree = TokenTree()
    root = tree.add([0, 1])
    for first in (2, 4, 6):
        tree.add([first, first + 1], root)
    passes = tree.passes(4)
    assert [step.keep for step in passes] == [(0, 1), ()]
    assert [step.carried for step in passes] == [0, 2]


def test_masks_never_grow_with_the_number_of_branches_or_roots():
    tree = TokenTree()
    for _ in range(20):
        root = tree.add(range(50))
        for _ in range(10):
            tree.add(range(SIBLING_ROWS // 2 + 1), root)
    (step,) = tree.passes(100_000)
    calls = plan_calls(step.blocks, 0, torch.device("cpu"), torch.float32)
    assert len(calls) == 20 * 11
    assert max(call.mask.numel() for call in calls if call.mask is not None) == (SIBLING_ROWS // 2 + 1) * (
        50 + SIBLING_ROWS // 2 + 1
    )
    assert len({id(call.mask) for call in calls}) == 2  # None for the roots, one shared mask for the branches


def test_small_siblings_share_a_call():
    tree = TokenTree()
    root = tree.add(range(5))
    for _ in range(10):
        tree.add([1, 2], root)
    (step,) = tree.passes(100)
    assert [(block.start, block.stop, block.segments) for block in step.blocks] == [
        (0, 5, (5,)),
        (5, 25, (2,) * 10),
    ]


@pytest.mark.parametrize(("tokens", "parent"), [((), None), ((1,), 3), ((1,), -1)])
def test_bad_segments_are_refused(tokens, parent):
    tree = TokenTree()
    tree.add([0])
    with pytest.raises(ValueError, match="segment"):
        tree.add(tokens, parent)


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="budget"):
        TokenTree().passes(0)
