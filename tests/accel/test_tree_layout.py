"""What the kernel would see, read from the layout's table alone, against each token's own path."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jevify.accel.ops.tree_layout import ITEM, Tile, plan_layout
from jevify.accel.tree import TokenTree
from token_trees import seen_by_path, trees

pytestmark = pytest.mark.cpu
TILE = Tile(16, 16, 1, 1)


def walk(item, spans, ends, carried, block_n):
    """Key slots of every row of one item, in the kernel's order and by its arithmetic."""
    rows = {row: [] for row in range(item["start"], item["stop"])}
    carried_spans, own_spans = spans[item["lo"] : item["mid"]], spans[item["mid"] : item["hi"]]
    ranges = [(list(range(*span)), span[1] - span[0], 0) for span in carried_spans]
    ranges += [(list(range(*span)), span[1] - span[0], 1) for span in own_spans[:-1]]
    last = range(*own_spans[-1]) if own_spans else range(0)
    joined = [*last, *range(item["local"], item["stop"])]
    ranges.append((joined, len(last) + item["whole"] - item["local"], 1))
    walked = 0
    for keys, whole, own in ranges:
        begin = max(item["first"] - walked, 0)
        finish = min(item["last"] - walked, len(keys))
        full = begin + max(min(whole, finish) - begin, 0) // block_n * block_n
        for row, seen in rows.items():
            seen += [keys[at] + own * carried for at in range(begin, full)]
            masked = [keys[at] for at in range(full, finish)]
            seen += [key + own * carried for key in masked if not own or key <= row < ends[key]]
        walked += len(keys)
    return rows


def seen_by_layout(step, layout):
    """Key slots that each row of the pass sees, merging the parts of split items; checks that none is written twice."""
    shape = layout.shape
    items, spans, ends, merges = (section.numpy() for section in shape.sections(layout.table))
    spans, seen, parts = spans.T.tolist(), {}, {}
    for column in items.T.tolist():
        item = dict(zip(ITEM, column, strict=True))
        rows = walk(item, spans, ends, step.carried, shape.tile.block_n)
        if item["part"] >= 0 and rows:
            assert item["part"] < shape.parts
            assert parts.setdefault(item["part"], rows) is rows
        else:
            assert not rows.keys() & seen.keys()
            seen |= rows
    for start, stop, part, count in merges.T.tolist():
        for row in range(start, stop):
            assert row not in seen
            seen[row] = [key for index in range(part, part + count) for key in parts[index][row]]
    return seen


def tokens_seen(tree, budget, **options):
    """For every token tag, the tags it sees over all passes of the tree."""
    carried, seen = [], {}
    for step in tree.passes(budget):
        layout = plan_layout(step, TILE, **options)
        keys = carried + list(step.token_ids)
        rows = seen_by_layout(step, layout)
        assert sorted(rows) == list(range(len(step.token_ids)))
        seen |= {step.token_ids[row]: [keys[slot] for slot in slots] for row, slots in rows.items()}
        carried = [keys[slot] for slot in step.keep]
    return seen


@settings(max_examples=300, deadline=None)
@given(trees(), st.integers(1, 40), st.sampled_from([1, 3, 16]))
def test_each_token_sees_exactly_its_own_path(tree, budget, group):
    assert tokens_seen(tree, budget, heads=group, kv_heads=1) == seen_by_path(tree)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.lists(st.integers(1, 60), max_size=6), st.integers(40, 400), st.integers(1, 400))
def test_split_walks_see_the_same(prefix, branches, budget, processors):
    tree = TokenTree()
    root = tree.add(range(prefix))
    for length in branches:
        tree.add(range(len(tree), len(tree) + length), root)
    options = {"heads": 4, "kv_heads": 2, "processors": processors}
    assert tokens_seen(tree, budget, **options) == seen_by_path(tree)


def pass_of(prefix, branches, leaves=()):
    tree = TokenTree()
    root = tree.add(range(prefix))
    for length in branches:
        branch = tree.add(range(length), root)
        for leaf in leaves:
            tree.add(range(leaf), branch)
    (step,) = tree.passes(1_000_000)
    return step


def columns(layout):
    items = layout.shape.sections(layout.table)[0].numpy()
    return {name: items[index] for index, name in enumerate(ITEM)}


def test_rows_of_several_siblings_share_a_tile():
    step = pass_of(400, [3] * 20)
    found = columns(plan_layout(step, Tile(32, 64, 4, 2), heads=2, kv_heads=1))
    assert np.count_nonzero(found["stop"]) == 400 // 16 + -(-60 // 16)


def test_a_branch_and_its_leaves_share_a_tile():
    step = pass_of(400, [7, 7], leaves=[2, 1])
    found = columns(plan_layout(step, Tile(64, 64, 4, 2), heads=2, kv_heads=1))
    assert np.count_nonzero(found["start"] >= 400) == 1


def test_roots_never_share_a_tile():
    tree = TokenTree()
    for _ in range(5):
        tree.add([1, 2, 3])
    (step,) = tree.passes(100)
    found = columns(plan_layout(step, TILE, heads=1, kv_heads=1))
    assert found["stop"].tolist()[:5] == [3, 6, 9, 12, 15]


def test_the_longest_walks_start_first_when_the_processors_are_full():
    found = columns(plan_layout(pass_of(300, [40] * 3), TILE, heads=1, kv_heads=1, processors=8))
    walks = found["last"].tolist()
    assert all(left >= right for left, right in pairwise(walks))


def test_a_few_rows_behind_many_keys_are_split_over_the_processors():
    tree = TokenTree()
    root = tree.add(range(4000))
    for _ in range(4):
        tree.add(range(20), root)
    step = tree.passes(4000)[1]
    layout = plan_layout(step, Tile(64, 64, 4, 2), heads=12, kv_heads=2, processors=132)
    found = columns(layout)
    assert 100 <= 2 * np.count_nonzero(found["stop"]) <= 200
    assert layout.shape.parts
    assert layout.shape.merges
    whole = plan_layout(step, Tile(64, 64, 4, 2), heads=12, kv_heads=2)
    assert whole.shape.parts == whole.shape.merges == 0


def test_with_slack_passes_of_as_many_rows_have_one_shape():
    options = {"heads": 2, "kv_heads": 1, "rows": 240, "slack": 64}
    shapes = set()
    for step in (pass_of(100, [30] * 4), pass_of(90, [11, 12]), pass_of(1, [1] * 30), pass_of(240, [])):
        layout = plan_layout(step, TILE, **options)
        shapes.add(layout.shape)
        seen = seen_by_layout(step, layout)
        count = len(step.token_ids)
        assert sorted(seen) == list(range(240))
        assert all(seen[row] == [] for row in range(count, 240))
        plain = plan_layout(step, TILE, heads=2, kv_heads=1)
        assert {row: seen[row] for row in range(count)} == seen_by_layout(step, plain)
    assert len(shapes) == 1
    # More roots than the slack holds are another shape, not an error.
    tree = TokenTree()
    for _ in range(200):
        tree.add([1])
    assert plan_layout(tree.passes(200)[0], TILE, **options).shape not in shapes


def test_a_pass_that_does_not_fit_is_refused():
    step = pass_of(100, [30] * 4)
    with pytest.raises(ValueError, match="do not fit"):
        plan_layout(step, TILE, heads=2, kv_heads=1, rows=219)
    with pytest.raises(ValueError, match="do not fit a tile"):
        plan_layout(step, TILE, heads=17, kv_heads=1)


@pytest.mark.parametrize("sizes", [(24, 16, 4, 2), (8, 16, 4, 2), (16, 16, 3, 2), (16, 16, 4, 0)])
def test_a_tile_checks_itself(sizes):
    with pytest.raises(ValueError, match=r"power of two|warps"):
        Tile(*sizes)
