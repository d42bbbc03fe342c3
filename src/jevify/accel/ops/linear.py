"""Matrix product with a stored weight, for rows too few to fill a GPU.

At some hundred rows a product costs what reading its weight costs, if enough programs read at once. The kernel cuts the
inner dimension too (split-K) where the outputs alone make too few programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.ops.rows import check, launch
from jevify.accel.ops.triton_runtime import jit, tl, triton

# Output elements of one program that adds up partial products.
_SUM_BLOCK = 1_024


@dataclass(frozen=True)
class LinearTile:
    """Compile-time shape of the kernel: block_m rows by block_n outputs, block_k inner values at a time.

    split: programs that share the inner dimension of one tile of outputs.
    """

    block_m: int
    block_n: int
    block_k: int
    split: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(self, name)
            if size < 16 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two of at least 16, not {size}")
        if not 1 <= self.split <= 64 or self.warps not in (1, 2, 4, 8) or self.stages < 1:
            raise ValueError(f"a tile needs a split of 1 to 64, 1, 2, 4 or 8 warps and at least one stage: {self}")

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory for the pipelined operands, in bytes."""
        return (self.block_m + self.block_n) * self.block_k * self.stages * itemsize


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, summed in fp32 and rounded once to x's dtype.

    x: [M, K], weight: [N, K], bias: [N] or None, all of one dtype. Returns a new [M, N].
    """
    return functional.linear(x, weight, bias)


def linear_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, tile: LinearTile) -> Tensor:
    """`linear` in one launch, in two when the tile splits, in none for no rows. The same input gives the same bits.

    x: any row stride, unit stride in K; weight and bias contiguous. Raises ValueError for what it does not take.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or not weight.is_contiguous():
        raise ValueError(
            f"linear: x is {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [M, K] and contiguous [N, K]"
        )
    if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_contiguous()):
        raise ValueError(f"linear: the bias is {tuple(bias.shape)}; it must be contiguous [{weight.shape[0]}]")
    check("linear", x, weight, *(() if bias is None else (bias,)))
    (rows, inner), outputs = x.shape, weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows or not outputs:
        return out
    split = tile.split
    target = out if split == 1 else torch.empty(split, rows, outputs, dtype=torch.float32, device=x.device)
    # Without a bias its pointer is never read.
    added = weight if bias is None else bias
    tiles = triton.cdiv(rows, tile.block_m) * triton.cdiv(outputs, tile.block_n)
    launch(
        _product,
        tiles * split,
        x.device,
        (x, weight, added, target, rows, outputs, inner, x.stride(0)),
        BIAS=bias is not None and split == 1,
        SPLIT=split,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        EVEN_K=inner % (tile.block_k * split) == 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if split > 1:
        count = rows * outputs
        launch(
            _sum,
            triton.cdiv(count, _SUM_BLOCK),
            x.device,
            (target, added, out, count, outputs),
            BIAS=bias is not None,
            SPLIT=split,
            BLOCK=_SUM_BLOCK,
            num_warps=4,
        )
    return out


@jit("rows")
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    out,
    rows,
    outputs,
    inner,
    x_stride,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    # Row tiles innermost: programs that run together read the same part of the weight.
    program = tl.program_id(0)
    row_tiles = tl.cdiv(rows, BLOCK_M)
    output_tiles = tl.cdiv(outputs, BLOCK_N)
    row = (program % row_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (program // row_tiles % output_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = program // (row_tiles * output_tiles)
    steps = tl.cdiv(tl.cdiv(inner, BLOCK_K), SPLIT)
    k = part * steps * BLOCK_K + tl.arange(0, BLOCK_K)
    inside_row = row < rows
    inside_column = column < outputs
    x_at = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    # Columns past the end read others again; their results are not stored.
    w_at = weight + (column % outputs).to(tl.int64)[None, :] * inner + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        # Rows past the end are not read at all: with one row read in their place, half a tile of them on an H200 took
        # twice the time of a full one.
        if EVEN_K:
            a = tl.load(x_at, mask=inside_row[:, None], other=0.0)
            b = tl.load(w_at)
        else:
            left = inner - step * BLOCK_K
            a = tl.load(x_at, mask=inside_row[:, None] & (k[None, :] < left), other=0.0)
            b = tl.load(w_at, mask=k[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        x_at += BLOCK_K
        w_at += BLOCK_K
    if BIAS:
        acc += tl.load(bias + column, mask=inside_column, other=0.0).to(tl.float32)[None, :]
    place = (part.to(tl.int64) * rows + row)[:, None] * outputs + column[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside_row[:, None] & inside_column[None, :])


@jit("count")
def _sum(  # type: ignore[no-untyped-def]
    partials, bias, out, count, outputs, BIAS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(partials + part * count.to(tl.int64) + place, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + place % outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)
