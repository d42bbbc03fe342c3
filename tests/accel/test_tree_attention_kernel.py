"""The Triton kernel in its interpreter against float64 softmax over each token's path; tests/gpu runs it compiled."""

import pytest
import torch

import triton_interpreter
from jevify.accel.ops.tree_attention_kernel import LOG2_E, fused_tree_attention
from jevify.accel.ops.tree_layout import Tile, plan_layout
from jevify.accel.ops.triton_runtime import INTERPRETED
from jevify.accel.tree import TokenTree
from token_trees import seen_by_path

if INTERPRETED:
    triton_interpreter.repair()
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]
TILE = Tile(32, 16, 1, 1)
# Largest error against float64: the rounding of the inputs' dtype in weights and output, values below about 4.
BOUND = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def forest():
    """Depth three, several roots, one-token segments and a segment longer than a chunk."""
    tree, sizes = TokenTree(), [(37, None), (5, 0), (1, 0), (19, 1), (1, 3), (2, 3), (7, 0), (3, None), (1, None)]
    for length, parent in sizes:
        tree.add(range(len(tree), len(tree) + length), parent)
    return tree


def exact(tree, q, k, v, scale):
    """Float64 attention of every token over its path."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = torch.empty_like(q)
    for token, path in seen_by_path(tree).items():
        weights = (torch.einsum("hd,nhd->hn", q[token], k[path]) * scale).softmax(-1)
        out[token] = torch.einsum("hn,nhd->hd", weights, v[path])
    return out


def fused(tree, q, k, v, scale, budget=1000, tile=TILE, joined=False, **options):
    """The kernel over all passes of the tree, keys of earlier passes apart or joined in front."""
    found = torch.full(q.shape, float("nan"), dtype=q.dtype)
    carried, past = [], None
    for step in tree.passes(budget):
        rows = list(step.token_ids)
        layout = plan_layout(step, tile, heads=q.shape[1], kv_heads=k.shape[1], **options)
        keys = carried + rows
        if joined or not carried:
            found[rows] = fused_tree_attention(q[rows], k[keys], v[keys], layout, scale)
        else:
            past = (k[carried], v[carried])
            found[rows] = fused_tree_attention(q[rows], k[rows], v[rows], layout, scale, past)
        carried = [keys[slot] for slot in step.keep]
    return found


def inputs(tree, heads, kv_heads, head_dim, dtype=torch.float32):
    torch.manual_seed(5)
    merged = torch.randn(len(tree), heads + 2 * kv_heads, head_dim).to(dtype)
    return merged.split((heads, kv_heads, kv_heads), dim=1)


def error(found, wanted):
    return (found.double() - wanted).abs().max().item()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [
        (6, 2, 16, torch.float32),
        (5, 1, 32, torch.bfloat16),
        (2, 2, 64, torch.float16),
        (7, 1, 128, torch.bfloat16),
        (3, 1, 128, torch.float32),
    ],
    ids=str,
)
def test_it_equals_softmax_over_each_path(heads, kv_heads, head_dim, dtype):
    tree = forest()
    q, k, v = inputs(tree, heads, kv_heads, head_dim, dtype)
    assert not q.is_contiguous()
    scale = head_dim**-0.5
    found = fused(tree, q, k, v, scale)
    assert found.dtype == dtype
    assert error(found, exact(tree, q, k, v, scale)) < BOUND[dtype]


@pytest.mark.parametrize("budget", [40, 11])
@pytest.mark.parametrize("joined", [False, True])
def test_carried_keys_are_seen_apart_or_joined(budget, joined):
    tree = forest()
    q, k, v = inputs(tree, 4, 2, 16)
    assert error(fused(tree, q, k, v, 0.3, budget, joined=joined), exact(tree, q, k, v, 0.3)) < 4e-6


@pytest.mark.parametrize("budget", [1000, 100])
def test_split_walks_are_merged_in_their_own_base(budget):
    tree = TokenTree()
    root = tree.add(range(100))
    for length in (9, 1, 14):
        tree.add(range(len(tree), len(tree) + length), root)
    q, k, v = inputs(tree, 3, 1, 16)
    wide = Tile(64, 16, 1, 1)
    step = tree.passes(budget)[-1]
    assert plan_layout(step, wide, heads=3, kv_heads=1, processors=64).shape.parts > 0
    # Large scores: base 2 merged as base e would be far off.
    scale = 2.0
    found = fused(tree, q, k, v, scale, budget, wide, processors=64)
    assert error(found, exact(tree, q, k, v, scale)) < 2e-5


def test_large_scores_do_not_overflow():
    tree = forest()
    q, k, v = inputs(tree, 2, 1, 16)
    found = fused(tree, 100 * q, 100 * k, v, 1.0)
    assert error(found, exact(tree, 100 * q, 100 * k, v, 1.0)) < 1e-3


def test_padding_comes_out_zero_and_poison_stays_in_its_root():
    tree = TokenTree()
    first = tree.add(range(20))
    tree.add(range(20, 23), first)
    second = tree.add(range(23, 30))
    tree.add([30], second)
    (step,) = tree.passes(100)
    q, k, v = (torch.cat((x, torch.full_like(x[:9], float("nan")))) for x in inputs(tree, 2, 1, 16))
    layout = plan_layout(step, TILE, heads=2, kv_heads=1, rows=40)
    clean = fused_tree_attention(q, k, v, layout, 0.3)
    assert torch.equal(clean[31:], torch.zeros(9, 2, 16))
    for poisoned, kept in ((slice(23, 31), slice(0, 23)), (slice(0, 23), slice(23, 31))):
        spoiled = v.clone()
        spoiled[poisoned] = float("inf")
        assert torch.equal(fused_tree_attention(q, k, spoiled, layout, 0.3)[kept], clean[kept])


def test_a_layout_of_the_same_shape_replays_other_contents():
    large, small = TokenTree(), TokenTree()
    for tree, prefix, branches in ((large, 30, (9, 9, 9)), (small, 21, (4, 13))):
        root = tree.add(range(prefix))
        for length in branches:
            tree.add(range(len(tree), len(tree) + length), root)
    options = {"heads": 2, "kv_heads": 1, "rows": len(large), "slack": 64}
    layout = plan_layout(large.passes(100)[0], TILE, **options)
    layout.table.copy_(plan_layout(small.passes(100)[0], TILE, **options).table)
    q, k, v = inputs(large, 2, 1, 16)
    found = fused_tree_attention(q, k, v, layout, 0.3)
    count = len(small)
    assert error(found[:count], exact(small, q[:count], k[:count], v[:count], 0.3)) < 4e-6
    assert not found[count:].any()


def test_no_rows_are_no_launch():
    step = TokenTree()
    step.add([1])
    (one,) = step.passes(1)
    empty = type(one)((), (), 0, (), (), ())
    layout = plan_layout(empty, TILE, heads=2, kv_heads=1)
    q, k = torch.empty(0, 2, 16), torch.empty(0, 1, 16)
    assert fused_tree_attention(q, k, k, layout, 1.0).shape == (0, 2, 16)


def test_what_it_does_not_take_is_refused_by_name():
    tree = forest()
    (step,) = tree.passes(100)
    layout = plan_layout(step, TILE, heads=2, kv_heads=1)
    q, k, v = inputs(tree, 2, 1, 16)
    cases = [
        ((q.double(), k.double(), v.double(), layout, 1.0), "float64"),
        ((q[..., :8], k[..., :8], v[..., :8], layout, 1.0), "head sizes"),
        ((q[1:], k, v, layout, 1.0), "76, heads, D"),
        ((q, k[1:], v, layout, 1.0), "76, heads, D"),
        ((q, k, v.half(), layout, 1.0), "share dtype"),
        ((q, k, v[:, [0, 0]], layout, 1.0), "as many heads"),
        ((torch.cat((q, q), 1), k, v, layout, 1.0), "not for these heads"),
        ((q, k, v.transpose(0, 2).contiguous().transpose(0, 2), layout, 1.0), "contiguous"),
        ((q.clone().requires_grad_(), k, v, layout, 1.0), "no backward"),
        ((q, k, v, layout, 0.0), "scale"),
        ((q, k, v, layout, 1.0, (k, v)), "carried keys and values must be .0,"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            fused_tree_attention(*arguments)


def test_the_base_of_the_exponent():
    assert pytest.approx(2**LOG2_E) == torch.e
