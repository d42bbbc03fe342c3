"""Root-mean-square normalization (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor

from jevify.accel.ops.rows import check, launch, row_layout, warps
from jevify.accel.ops.triton_runtime import jit, tl, triton

# One program holds whole rows; wider ones would spill.
MAX_WIDTH = 65_536
# Narrow rows share a program until it has this many elements.
_PROGRAM_ELEMENTS = 1_024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [..., H] fp16, bf16 or fp32, any strides; weight: [H] of the same dtype. The statistics and the scaling are fp32;
    the normalized value is rounded to x's dtype *before* the weight multiplies it. Returns a new tensor like x.
    """
    wide = x.float()
    normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normalized.to(x.dtype)


def residual_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual stream, then normalize the sum *as rounded to x's dtype*.

    x, residual: [..., H] of one dtype. Returns (normalized sum, sum), both new tensors.
    """
    total = residual + x
    return rms_norm(total, weight, eps), total


def rms_norm_kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in one launch, or none for no rows.

    x: [..., H] with unit stride in H and leading dimensions of at most two loops (see `row_layout`), H <= 65,536.
    Returns a new contiguous tensor. Raises ValueError for what it does not take.
    """
    _check_width("rms_norm", x, weight)
    check("rms_norm", x, weight)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, eps, out, None)
    return out


def residual_rms_norm_kernel(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`residual_rms_norm` in one launch, or none for no rows; takes and refuses what `rms_norm_kernel` does."""
    _check_width("residual_rms_norm", x, weight)
    if residual.shape != x.shape:
        raise ValueError(f"residual_rms_norm: x is {tuple(x.shape)} and the residual {tuple(residual.shape)}")
    check("residual_rms_norm", x, residual, weight)
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(x, residual, weight, eps, out, total)
    return out, total


def _check_width(name: str, x: Tensor, weight: Tensor) -> None:
    if weight.shape != x.shape[-1:] or not 0 < x.shape[-1] <= MAX_WIDTH:
        raise ValueError(
            f"{name}: x is {tuple(x.shape)} and weight {tuple(weight.shape)}; "
            f"weight must be [H] for x [..., H] with 1 <= H <= {MAX_WIDTH}"
        )


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor, total: Tensor | None) -> None:
    rows, inner, outer_stride, inner_stride = row_layout("rms_norm", x)
    if rows == 0:
        return
    residual_layout = row_layout("residual_rms_norm", residual)[1:] if residual is not None else (1, 0, 0)
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    block_rows = max(1, _PROGRAM_ELEMENTS // block)
    # Without a residual its pointers are never read.
    tensors = (x, x if residual is None else residual, weight, out, out if total is None else total)
    launch(
        _rms_norm,
        triton.cdiv(rows, block_rows),
        x.device,
        (*tensors, rows, width, inner, outer_stride, inner_stride, *residual_layout, eps),
        ADD=residual is not None,
        BLOCK_ROWS=block_rows,
        BLOCK=block,
        num_warps=warps(block * block_rows),
    )


@jit("rows")
def _rms_norm(  # type: ignore[no-untyped-def]
    x,
    residual,
    weight,
    out,
    total,
    rows,
    width,
    x_inner,
    x_outer_stride,
    x_inner_stride,
    residual_inner,
    residual_outer_stride,
    residual_inner_stride,
    eps,
    ADD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    dtype = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    mask = (row < rows)[:, None] & inside[None, :]
    start = (row // x_inner) * x_outer_stride + (row % x_inner) * x_inner_stride
    values = tl.load(x + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    place = row[:, None] * width + column[None, :]
    if ADD:
        start = (row // residual_inner) * residual_outer_stride + (row % residual_inner) * residual_inner_stride
        stream = tl.load(residual + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
        rounded = (stream + values).to(dtype)
        tl.store(total + place, rounded, mask=mask)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)
    normalized = (values * scale[:, None]).to(dtype).to(tl.float32)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, (factor[None, :] * normalized).to(dtype), mask=mask)
