"""Token-tree attention, kernel and reference, against fp64 softmax over each token's path."""

from functools import partial

import torch
from torch import Tensor

from jevify.accel.ops.tree_attention import plan_calls, tree_attention
from jevify.accel.ops.tree_attention_kernel import fused_tree_attention
from jevify.accel.ops.tree_layout import Tile, plan_layout
from jevify.accel.tree import TokenTree
from jevify.evidence.validate.cases import DEVICE, tensor_distance
from jevify.evidence.validate.check import Check

# Depth three, several roots, one-token segments and a segment longer than a chunk: (tokens, parent).
FOREST = ((37, None), (5, 0), (1, 0), (19, 1), (1, 3), (2, 3), (7, 0), (3, None), (1, None))
# A prefix whose keys are split over programs.
LONG = ((100, None), (9, 0), (1, 0), (14, 0))
TILE, WIDE = Tile(32, 16, 1, 1), Tile(64, 16, 1, 1)


def grown(segments: tuple[tuple[int, int | None], ...]) -> TokenTree:
    """A tree whose tokens are their own indices."""
    tree = TokenTree()
    for length, parent in segments:
        tree.add(range(len(tree), len(tree) + length), parent)
    return tree


def inputs(tree: TokenTree, heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and values as views of a merged product."""
    generator = torch.Generator().manual_seed(5)
    merged = torch.randn(len(tree), heads + 2 * kv_heads, size, generator=generator).to(dtype).to(DEVICE)
    return merged.split((heads, kv_heads, kv_heads), dim=1)


def exact(tree: TokenTree, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Every token over its path, query head h with key head h // (Hq / Hkv)."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k, v))
    out = torch.empty_like(q)
    for index, segment in enumerate(tree.segments):
        path = [token for ancestor in tree.path(index) for token in tree.segments[ancestor].tokens]
        for depth, token in enumerate(segment.tokens, start=len(path) - len(segment.tokens)):
            seen = path[: depth + 1]
            for head in range(q.shape[1]):
                weights = (k[seen, head // group] @ q[token, head] * scale).softmax(0)
                out[token, head] = weights @ v[seen, head // group]
    return out


def by_kernel(
    tree: TokenTree, q: Tensor, k: Tensor, v: Tensor, scale: float, *, budget: int, tile: Tile, processors: int = 0
) -> Tensor:
    """The kernel over all passes; every second pass gets its carried keys joined in front, the others apart."""
    found = torch.full_like(q, torch.nan)
    carried: list[int] = []
    for number, step in enumerate(tree.passes(budget)):
        rows = list(step.token_ids)
        keys = carried + rows
        layout = plan_layout(step, tile, heads=q.shape[1], kv_heads=k.shape[1], processors=processors).to(DEVICE)
        if number % 2 or not carried:
            found[rows] = fused_tree_attention(q[rows], k[keys], v[keys], layout, scale)
        else:
            past = (k[carried], v[carried])
            found[rows] = fused_tree_attention(q[rows], k[rows], v[rows], layout, scale, past)
        carried = [keys[slot] for slot in step.keep]
    return found


def by_reference(tree: TokenTree, q: Tensor, k: Tensor, v: Tensor, scale: float, *, budget: int) -> Tensor:
    """SDPA calls over all passes."""
    found = torch.full_like(q, torch.nan)
    carried: list[int] = []
    for step in tree.passes(budget):
        rows = list(step.token_ids)
        keys = carried + rows
        calls = plan_calls(step.blocks, step.carried, DEVICE, q.dtype)
        found[rows] = tree_attention(q[rows], k[keys], v[keys], calls, scale)
        carried = [keys[slot] for slot in step.keep]
    return found


def kernel(heads: int, kv_heads: int, size: int, dtype: torch.dtype, budget: int) -> float:
    """Largest error on the forest."""
    tree = grown(FOREST)
    q, k, v = inputs(tree, heads, kv_heads, size, dtype)
    found = by_kernel(tree, q, k, v, size**-0.5, budget=budget, tile=TILE)
    return tensor_distance(found, exact(tree, q, k, v, size**-0.5))


def reference(budget: int) -> float:
    """Largest error of the SDPA calls on the forest."""
    tree = grown(FOREST)
    q, k, v = inputs(tree, 6, 2, 16, torch.float32)
    return tensor_distance(by_reference(tree, q, k, v, 0.25, budget=budget), exact(tree, q, k, v, 0.25))


def merged(budget: int) -> float:
    """Largest error where partial results are merged; scores are large enough to tell the bases of exponents apart."""
    tree = grown(LONG)
    q, k, v = inputs(tree, 3, 1, 16, torch.float32)
    step = tree.passes(budget)[-1]
    if not plan_layout(step, WIDE, heads=3, kv_heads=1, processors=64).shape.parts:
        raise RuntimeError("nothing was split")
    found = by_kernel(tree, q, k, v, 1.0, budget=budget, tile=WIDE, processors=64)
    return tensor_distance(found, exact(tree, q, k, v, 1.0))


def large_scores() -> float:
    """Rows that are not finite when scores would overflow without their maximum taken off."""
    tree = grown(FOREST)
    q, k, v = inputs(tree, 2, 1, 16, torch.float32)
    found = by_kernel(tree, 100 * q, 100 * k, v, 1.0, budget=1000, tile=TILE)
    return float((~found.isfinite()).any(-1).sum())


def padding() -> float:
    """Rows that padding full of NaN, or an infinite value in another request, changes, and padding that is not zero."""
    tree = grown(((20, None), (3, 0), (7, None), (1, 2)))
    (step,) = tree.passes(100)
    spoiled = [torch.cat((x, torch.full_like(x[:9], torch.nan))) for x in inputs(tree, 2, 1, 16, torch.float32)]
    q, k, v = spoiled
    layout = plan_layout(step, TILE, heads=2, kv_heads=1, rows=40).to(DEVICE)
    clean = fused_tree_attention(q, k, v, layout, 0.3)
    wanted = exact(tree, q[:31], k[:31], v[:31], 0.3)
    wrong = float((clean[31:] != 0).any(-1).sum()) + float(((clean[:31] - wanted).abs() > 1e-5).any(-1).sum())
    wrong += float(clean.isnan().any(-1).sum())
    for poisoned, kept in ((slice(23, 31), slice(0, 23)), (slice(0, 23), slice(23, 31))):
        infinite = v.clone()
        infinite[poisoned] = torch.inf
        wrong += float((fused_tree_attention(q, k, infinite, layout, 0.3)[kept] != clean[kept]).any(-1).sum())
    return wrong


CHECKS = (
    Check("attention.kernel.float32", "attention_float32", partial(kernel, 6, 2, 16, torch.float32, 1000)),
    Check("attention.kernel.float32-passes", "attention_float32", partial(kernel, 6, 2, 16, torch.float32, 21)),
    Check("attention.kernel.float16", "attention_float16", partial(kernel, 2, 2, 64, torch.float16, 1000)),
    Check("attention.kernel.bfloat16", "attention_bfloat16", partial(kernel, 5, 1, 32, torch.bfloat16, 1000)),
    Check("attention.kernel.merged", "attention_float32", partial(merged, 1000)),
    Check("attention.kernel.merged-passes", "attention_float32", partial(merged, 100)),
    Check("attention.kernel.large-scores", "violations", large_scores),
    Check("attention.kernel.padding", "violations", padding),
    *(
        Check(f"attention.reference.{budget}-rows", "attention_float32", partial(reference, budget))
        for budget in (1000, 21, 4)
    ),
)
