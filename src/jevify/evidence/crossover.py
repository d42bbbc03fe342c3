"""One layer's attention over a prefix and its branches, in the ways that replace each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.ops.tree_attention import plan_calls, tree_attention
from jevify.accel.ops.tree_attention_kernel import fused_tree_attention
from jevify.accel.ops.tree_layout import plan_layout
from jevify.accel.ops.tree_tiles import tile_for
from jevify.accel.tree import Block, Pass, TokenTree


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads and head size."""

    heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True)
class Size:
    """`branches` of `rows` tokens each behind `prefix` shared ones."""

    prefix: int
    branches: int
    rows: int

    @property
    def total(self) -> int:
        """Tokens of prefix and branches."""
        return self.prefix + self.branches * self.rows


@dataclass(frozen=True)
class Way:
    """A way to attend: `run(*inputs)` returns the attended rows, `inputs` draws new ones.

    bytes_moved: of the inputs, once.
    """

    run: Callable[..., Tensor]
    inputs: Callable[[], tuple[Tensor, ...]]
    bytes_moved: int


def whole_pass(size: Size) -> Pass:
    """The prefix and its branches in one pass."""
    tree = TokenTree()
    root = tree.add([0] * size.prefix)
    for _ in range(size.branches):
        tree.add([0] * size.rows, root)
    (step,) = tree.passes(size.total)
    return step


def behind_pass(size: Size) -> Pass:
    """The branches alone, behind the prefix as carried rows."""
    whole, seen = whole_pass(size), size.prefix
    blocks = tuple(
        Block(block.start - seen, block.stop - seen, block.ancestors, block.segments)
        for block in whole.blocks
        if block.ancestors
    )
    return Pass(whole.token_ids[seen:], whole.positions[seen:], seen, blocks, (), ())


def repeat_bytes(size: Size, heads: Heads, dtype: torch.dtype) -> int:
    """What the repeated keys and values of `repeat` take at most: each key head once more for each query head."""
    keys = size.branches * (size.prefix + size.rows)
    return 2 * keys * (heads.heads + 2 * heads.kv_heads) * heads.head_size * dtype.itemsize


def ways(size: Size, heads: Heads, *, dtype: torch.dtype, device: torch.device, processors: int) -> dict[str, Way]:
    """The four ways: `kernel` and `calls` over the whole pass, `behind` and `repeat` over the branches.

    kernel, calls: q [T, Hq, D], k and v [T, Hkv, D], prefix first. behind: q [T - P, Hq, D], k and v as before. repeat:
    q [N, Hq, L, D], own k and v [N, Hkv, L, D], and the prefix's [1, Hkv, P, D], as a transformers cache has them.
    """
    whole, behind = whole_pass(size), behind_pass(size)
    calls = plan_calls(whole.blocks, 0, device, dtype)
    scale = heads.head_size**-0.5
    own = size.branches * size.rows

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, heads.head_size, device=device).to(dtype)

    def packed(rows: int) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: (
            random(rows, heads.heads), random(size.total, heads.kv_heads), random(size.total, heads.kv_heads)
        )  # fmt: skip

    def branch(count: int, kinds: int, length: int) -> Tensor:
        return random(count, kinds, length)

    def forked() -> tuple[Tensor, ...]:
        fresh = [branch(size.branches, kinds, size.rows) for kinds in (heads.heads, heads.kv_heads, heads.kv_heads)]
        return *fresh, branch(1, heads.kv_heads, size.prefix), branch(1, heads.kv_heads, size.prefix)

    each = heads.head_size * dtype.itemsize
    keys = 2 * size.total * heads.kv_heads * each
    rows = {"whole": keys + size.total * heads.heads * each, "own": keys + own * heads.heads * each}
    return {
        "kernel": Way(_kernel(whole, heads, dtype, device, processors, scale), packed(size.total), rows["whole"]),
        "calls": Way(lambda q, k, v: tree_attention(q, k, v, calls, scale), packed(size.total), rows["whole"]),
        "behind": Way(_kernel(behind, heads, dtype, device, processors, scale), packed(own), rows["own"]),
        "repeat": Way(_repeat(size, heads, device, scale), forked, rows["own"]),
    }


def _kernel(
    step: Pass, heads: Heads, dtype: torch.dtype, device: torch.device, processors: int, scale: float
) -> Callable[..., Tensor]:
    sizes: dict[str, Any] = {"heads": heads.heads, "kv_heads": heads.kv_heads, "processors": processors}
    tile = tile_for(len(step.token_ids), max(step.positions) + 1, dtype=dtype, **sizes)
    layout = plan_layout(step, tile, **sizes).to(device)
    return lambda q, k, v: fused_tree_attention(q, k, v, layout, scale)


def _repeat(size: Size, heads: Heads, device: torch.device, scale: float) -> Callable[..., Tensor]:
    """What transformers does with a copied cache: repeat the prefix, append, repeat the key heads, masked SDPA."""
    visible = torch.ones(size.rows, size.prefix + size.rows, dtype=torch.bool, device=device).tril(size.prefix)
    mask = visible.expand(size.branches, 1, -1, -1)
    group = heads.heads // heads.kv_heads

    def keys(prefix: Tensor, own: Tensor) -> Tensor:
        copies = prefix.repeat_interleave(size.branches, dim=0) if size.branches > 1 else prefix
        return torch.cat((copies, own), dim=2).repeat_interleave(group, dim=1)

    def run(q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, keys(prefix_k, k), keys(prefix_v, v), attn_mask=mask, scale=scale
        )

    return run
