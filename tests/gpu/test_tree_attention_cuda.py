"""The token-tree attention kernel compiled, at real sizes, against float64."""

import pytest
import torch

from jevify.accel.ops.tree_attention import plan_calls, tree_attention
from jevify.accel.ops.tree_attention_kernel import fused_tree_attention
from jevify.accel.ops.tree_layout import Tile, plan_layout
from jevify.accel.ops.tree_tiles import TILES, TILES_FLOAT32, tile_for
from jevify.accel.tree import TokenTree

pytestmark = pytest.mark.gpu
# Largest error against float64 for normal inputs: rounding of weights and output.
BOUND = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
QWEN = (12, 2, 128)
# prefix, branches, rows a branch, leaves of two tokens a branch, requests
SHAPES = {
    "one question": (100, 1, 50, 0, 1),
    "four questions": (120, 4, 70, 0, 1),
    "28 questions": (250, 28, 80, 0, 1),
    "28 questions with leaves": (250, 28, 80, 4, 1),
    "long prefix": (4000, 8, 80, 0, 1),
    "64 requests": (120, 4, 70, 0, 64),
    "one token each": (1, 40, 1, 2, 3),
}


def forest(prefix, branches, rows, leaves, requests):
    tree = TokenTree()
    for _ in range(requests):
        root = tree.add([0] * prefix)
        for _ in range(branches):
            branch = tree.add([0] * rows, root)
            for _ in range(leaves):
                tree.add([0, 0], branch)
    return tree


def projections(rows, heads, kv_heads, head_dim, dtype, seed=1):
    """Strided q, k and v: views of one merged product."""
    torch.manual_seed(seed)
    merged = torch.randn(rows, heads + 2 * kv_heads, head_dim, device="cuda").to(dtype)
    return merged.split((heads, kv_heads, kv_heads), dim=1)


def exact(step, q, k, v):
    q, k, v = (x.double() for x in (q, k, v))
    calls = plan_calls(step.blocks, step.carried, q.device, q.dtype)
    return tree_attention(q, k, v, calls, q.shape[2] ** -0.5)


def error(found, wanted):
    return (found.double() - wanted).abs().max().item()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("specialize_short", [True, False])
def test_real_requests(shape, dtype, specialize_short):
    (step,) = forest(*SHAPES[shape]).passes(1_000_000)
    heads, kv_heads, head_dim = QWEN
    count = len(step.token_ids)
    q, k, v = projections(count, *QWEN, dtype)
    tile = tile_for(
        count,
        max(step.positions) + 1,
        heads=heads,
        kv_heads=kv_heads,
        dtype=dtype,
        processors=132,
        specialize_short=specialize_short,
    )
    layout = plan_layout(step, tile, heads=heads, kv_heads=kv_heads, processors=132).to("cuda")
    found = fused_tree_attention(q, k, v, layout, head_dim**-0.5)
    assert error(found, exact(step, q, k, v)) < BOUND[dtype]
    assert torch.equal(found, fused_tree_attention(q, k, v, layout, head_dim**-0.5))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(14, 2, 64), (32, 8, 64), (16, 8, 128), (9, 3, 32), (4, 4, 16)]
)
@pytest.mark.parametrize("tile", [*TILES, *TILES_FLOAT32], ids=str)
def test_every_tile_and_head_size(heads, kv_heads, head_dim, tile):
    dtype = torch.float32 if tile in TILES_FLOAT32 else torch.bfloat16
    (step,) = forest(250, 5, 33, 2, 2).passes(1_000_000)
    q, k, v = projections(len(step.token_ids), heads, kv_heads, head_dim, dtype)
    layout = plan_layout(step, tile, heads=heads, kv_heads=kv_heads).to("cuda")
    assert error(fused_tree_attention(q, k, v, layout, head_dim**-0.5), exact(step, q, k, v)) < BOUND[dtype]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("processors", [0, 132])
def test_few_rows_behind_carried_keys(joined, processors):
    heads, kv_heads, head_dim = QWEN
    step = forest(4000, 8, 80, 0, 1).passes(4000)[1]
    keys = step.carried + len(step.token_ids)
    q, k, v = projections(keys, *QWEN, torch.bfloat16)
    q = q[step.carried :]
    layout = plan_layout(step, TILES[0], heads=heads, kv_heads=kv_heads, processors=processors).to("cuda")
    assert bool(layout.shape.parts) == bool(processors)
    past = step.carried
    found = (
        fused_tree_attention(q, k, v, layout, head_dim**-0.5)
        if joined
        else fused_tree_attention(q, k[past:], v[past:], layout, head_dim**-0.5, (k[:past].clone(), v[:past].clone()))
    )
    assert error(found, exact(step, q, k, v)) < BOUND[torch.bfloat16]


def test_a_captured_graph_replays_other_contents():
    heads, kv_heads, _ = QWEN
    (large,) = forest(250, 28, 80, 0, 1).passes(1_000_000)
    options = {"heads": heads, "kv_heads": kv_heads, "rows": len(large.token_ids), "slack": 64}
    layout = plan_layout(large, TILES[0], **options).to("cuda")
    q, k, v = projections(len(large.token_ids), *QWEN, torch.bfloat16)
    fused_tree_attention(q, k, v, layout, 0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_tree_attention(q, k, v, layout, 0.1)
    (small,) = forest(301, 17, 66, 0, 1).passes(1_000_000)
    count = len(small.token_ids)
    layout.table.copy_(plan_layout(small, TILES[0], **options).table)
    for x in (q, k, v):
        x.copy_(torch.randn_like(x))
    graph.replay()
    alone = plan_layout(small, TILES[0], heads=heads, kv_heads=kv_heads).to("cuda")
    assert torch.equal(out[:count], fused_tree_attention(q[:count], k[:count], v[:count], alone, 0.1))
    assert not out[count:].any()


def test_more_tiles_than_a_grid_axis_holds():
    tree = TokenTree()
    for _ in range(70_000):
        tree.add([0])
    (step,) = tree.passes(1_000_000)
    q, k, v = projections(70_000, 2, 1, 16, torch.float16)
    layout = plan_layout(step, Tile(16, 16, 1, 1), heads=2, kv_heads=1).to("cuda")
    assert torch.equal(fused_tree_attention(q, k, v, layout, 0.25), v.expand(-1, 2, -1))


def test_row_offsets_beyond_32_bits():
    (step,) = forest(250, 4, 20, 0, 1).passes(1_000_000)
    count, stride = len(step.token_ids), 2**23 + 16
    store = torch.empty(count * stride, dtype=torch.bfloat16, device="cuda")
    far = [store[64 * index :].as_strided((count, heads, 32), (stride, 32, 1)) for index, heads in enumerate((2, 1, 1))]
    near = [x.copy_(torch.randn(x.shape, device="cuda")).contiguous() for x in far]
    layout = plan_layout(step, TILES[1], heads=2, kv_heads=1).to("cuda")
    assert torch.equal(fused_tree_attention(*far, layout, 0.2), fused_tree_attention(*near, layout, 0.2))
    assert error(fused_tree_attention(*far, layout, 32**-0.5), exact(step, *near)) < BOUND[torch.bfloat16]


def test_one_requests_infinities_do_not_reach_another():
    heads, kv_heads, head_dim = QWEN
    (step,) = forest(13, 2, 5, 1, 2).passes(1_000_000)
    half = len(step.token_ids) // 2
    q, k, v = projections(2 * half, *QWEN, torch.float16)
    layout = plan_layout(step, TILES[2], heads=heads, kv_heads=kv_heads).to("cuda")
    clean = fused_tree_attention(q, k, v, layout, head_dim**-0.5)
    v[half:] = float("inf")
    assert torch.equal(fused_tree_attention(q, k, v, layout, head_dim**-0.5)[:half], clean[:half])
