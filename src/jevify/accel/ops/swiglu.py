"""The gated activation of the feed-forward layer (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.ops.rows import check, launch, row_layout, warps
from jevify.accel.ops.triton_runtime import INTERPRETED, jit, libdevice, tl, triton

# Values of one program: a piece of a wide row, or several narrow rows.
_PROGRAM_ELEMENTS = 1_024


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate and up are the two halves of the last dimension.

    gate_up: [..., 2 I], the merged product. silu is rounded to the dtype before the multiply. Returns [..., I].
    """
    return silu_mul(*gate_up.chunk(2, dim=-1))


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up for two tensors [..., I], any strides; silu is rounded to the dtype before the multiply."""
    return functional.silu(gate) * up


def swiglu_kernel(gate_up: Tensor) -> Tensor:
    """`swiglu` in one launch, or none for no rows. gate_up: as `silu_mul_kernel` takes its two halves."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"swiglu: gate_up is {tuple(gate_up.shape)}; its last dimension must be even")
    return silu_mul_kernel(*gate_up.chunk(2, dim=-1))


def silu_mul_kernel(gate: Tensor, up: Tensor) -> Tensor:
    """`silu_mul` in one launch, or none for no rows.

    gate, up: [..., I] of one shape and dtype, unit stride in I, leading dimensions of at most two loops (see
    `row_layout`). Returns a new contiguous tensor. Raises ValueError for what it does not take.
    """
    if gate.shape != up.shape:
        raise ValueError(f"swiglu: gate is {tuple(gate.shape)} and up {tuple(up.shape)}; the shapes must be the same")
    check("swiglu", gate, up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel() == 0:
        return out
    rows, *gate_layout = row_layout("swiglu", gate)
    up_layout = row_layout("swiglu", up)[1:]
    width = gate.shape[-1]
    block = min(_PROGRAM_ELEMENTS, triton.next_power_of_2(width))
    block_rows = _PROGRAM_ELEMENTS // block
    blocks = triton.cdiv(width, block)
    launch(
        _silu_mul,
        triton.cdiv(rows, block_rows) * blocks,
        gate.device,
        (gate, up, out, rows, width, blocks, *gate_layout, *up_layout),
        LIBDEVICE=not INTERPRETED,
        BLOCK_ROWS=block_rows,
        BLOCK=block,
        num_warps=warps(_PROGRAM_ELEMENTS),
    )
    return out


@jit("rows")
def _silu_mul(  # type: ignore[no-untyped-def]
    gate,
    up,
    out,
    rows,
    width,
    blocks,
    gate_inner,
    gate_outer_stride,
    gate_inner_stride,
    up_inner,
    up_outer_stride,
    up_inner_stride,
    LIBDEVICE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    dtype = out.dtype.element_ty
    program = tl.program_id(0).to(tl.int64)
    row = (program // blocks) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    start = (row // gate_inner) * gate_outer_stride + (row % gate_inner) * gate_inner_stride
    wide = tl.load(gate + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    start = (row // up_inner) * up_outer_stride + (row % up_inner) * up_inner_stride
    factor = tl.load(up + start[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    # PyTorch's exponential on CUDA; Triton's own is an approximation, and the interpreter has no libdevice.
    power = libdevice.exp(-wide) if LIBDEVICE else tl.exp(-wide)
    activated = tl.div_rn(wide, 1.0 + power).to(dtype).to(tl.float32)
    tl.store(out + row[:, None] * width + column[None, :], (activated * factor).to(dtype), mask=mask)
