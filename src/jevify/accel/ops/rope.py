"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), with a head's two halves rotated against each other."""

from __future__ import annotations

import torch
from torch import Tensor

from jevify.accel.ops.rms_norm import rms_norm
from jevify.accel.ops.rows import check, launch, warps
from jevify.accel.ops.triton_runtime import jit, tl, triton

MAX_HEAD_SIZE = 512
# Tokens share a program until their rotated pairs are this many.
_PROGRAM_PAIRS = 1_024


def rotary_table(positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency, computed in fp32, scaled, and rounded to `dtype`.

    positions: int64 [T]; inv_freq: fp32 [D / 2]. Returns two [T, D] tensors whose halves repeat.
    """
    angles = positions[:, None].float() * inv_freq.float()
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head of x: x cos + rotate_half(x) sin, each product rounded to x's dtype.

    x: [T, heads, D], any strides; cos, sin: [T, D] of x's dtype. Returns a new contiguous [T, heads, D] tensor.
    """
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x * cos[:, None] + rotated * sin[:, None]


def norm_rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, each head normalized by `rms_norm` first where there are weights for it.

    q: [T, Hq, D], k: [T, Hkv, D], any strides. cos, sin: [T, D], or [P, D] with P a divisor of T: row t then reads
    row t mod P, as batches of equal positions do. q_weight, k_weight: [D], both or neither. Everything has one dtype.
    Returns two new tensors of the shapes of q and k.
    """
    _check_shapes(q, k, cos, sin, q_weight, k_weight)
    if q_weight is not None and k_weight is not None:
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    if cos.shape[0] != q.shape[0]:
        repeats = q.shape[0] // cos.shape[0]
        cos, sin = cos.repeat(repeats, 1), sin.repeat(repeats, 1)
    return rope(q, cos, sin), rope(k, cos, sin)


def norm_rope_kernel(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`norm_rope` in one launch, or none for no rows.

    Takes any token and head strides, unit stride in D, contiguous weights, D even and at most 512. Returns contiguous
    tensors. Raises ValueError for what it does not take.
    """
    _check_shapes(q, k, cos, sin, q_weight, k_weight)
    weights = () if q_weight is None or k_weight is None else (q_weight, k_weight)
    check("rope", q, k, cos, sin, *weights)
    tokens, heads, size = q.shape
    if reason := refusal(size):
        raise ValueError(f"rope: {reason}")
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    if tokens == 0:
        return q_out, k_out
    half = triton.next_power_of_2(size // 2)
    q_heads, k_heads = triton.next_power_of_2(heads), triton.next_power_of_2(k.shape[1])
    block_tokens = max(1, _PROGRAM_PAIRS // (half * max(q_heads, k_heads)))
    # Without norms the weight pointers are never read.
    tensors = (q, k, cos, sin, *(weights or (cos, cos)), q_out, k_out)
    strides = (*q.stride()[:2], *k.stride()[:2], cos.stride(0), sin.stride(0))
    launch(
        _norm_rope,
        triton.cdiv(tokens, block_tokens),
        q.device,
        (*tensors, tokens, heads, k.shape[1], size // 2, cos.shape[0], eps, *strides),
        NORM=bool(weights),
        TOKENS=block_tokens,
        Q_HEADS=q_heads,
        K_HEADS=k_heads,
        HALF=half,
        num_warps=warps(block_tokens * half * q_heads),
    )
    return q_out, k_out


def refusal(head_size: int) -> str | None:
    """Why the kernel does not take heads of this size; None when it does."""
    if head_size % 2 or not 0 < head_size <= MAX_HEAD_SIZE:
        return f"heads of {head_size} values cannot be rotated; the size must be even and at most {MAX_HEAD_SIZE}"
    return None


def _check_shapes(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None
) -> None:
    tokens, _, size = q.shape
    if k.shape[0] != tokens or k.shape[2] != size:
        raise ValueError(f"rope: q is {tuple(q.shape)} and k {tuple(k.shape)}; they differ in more than heads")
    rows = cos.shape[0]
    fits = tokens == 0 if rows == 0 else tokens % rows == 0
    if cos.shape != sin.shape or cos.shape[1:] != (size,) or not fits:
        raise ValueError(
            f"rope: cos is {tuple(cos.shape)} and sin {tuple(sin.shape)}; both must be [P, {size}] with P dividing "
            f"{tokens} tokens"
        )
    if (q_weight is None) != (k_weight is None):
        raise ValueError("rope: q and k are normalized both or neither; one weight is missing")
    for weight in (q_weight, k_weight):
        if weight is not None and weight.shape != (size,):
            raise ValueError(f"rope: a norm weight is {tuple(weight.shape)}; it must be [{size}]")


@jit("tokens", "table_rows")
def _norm_rope(  # type: ignore[no-untyped-def]
    q,
    k,
    cos,
    sin,
    q_weight,
    k_weight,
    q_out,
    k_out,
    tokens,
    q_heads,
    k_heads,
    half,
    table_rows,
    eps,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    cos_stride,
    sin_stride,
    NORM: tl.constexpr,
    TOKENS: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, HALF)
    mask = (token < tokens)[:, None] & (column < half)[None, :]
    cos += ((token % table_rows) * cos_stride)[:, None] + column[None, :]
    sin += ((token % table_rows) * sin_stride)[:, None] + column[None, :]
    cos_first = tl.load(cos, mask=mask, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + half, mask=mask, other=0.0).to(tl.float32)
    sin_first = tl.load(sin, mask=mask, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + half, mask=mask, other=0.0).to(tl.float32)
    _turn(
        q, q_stride, q_head_stride, q_weight, q_out, token, tokens, q_heads, half, eps,
        cos_first, cos_second, sin_first, sin_second, NORM, Q_HEADS, HALF,
    )  # fmt: skip
    _turn(
        k, k_stride, k_head_stride, k_weight, k_out, token, tokens, k_heads, half, eps,
        cos_first, cos_second, sin_first, sin_second, NORM, K_HEADS, HALF,
    )  # fmt: skip


@jit()
def _turn(  # type: ignore[no-untyped-def]
    x,
    stride,
    head_stride,
    weight,
    out,
    token,
    tokens,
    heads,
    half,
    eps,
    cos_first,
    cos_second,
    sin_first,
    sin_second,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    dtype = out.dtype.element_ty
    head = tl.arange(0, HEADS).to(tl.int64)
    column = tl.arange(0, HALF)
    inside = column < half
    mask = (token < tokens)[:, None, None] & (head < heads)[None, :, None] & inside[None, None, :]
    row = token[:, None] * stride + head[None, :] * head_stride
    x += row[:, :, None] + column[None, None, :]
    first = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + half, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, axis=2) + tl.sum(second * second, axis=2)
        scale = tl.rsqrt(squares / (2 * half) + eps)[:, :, None]
        first_weight = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, None, :]
        second_weight = tl.load(weight + half + column, mask=inside, other=0.0).to(tl.float32)[None, None, :]
        first = (first_weight * (first * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        second = (second_weight * (second * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    row = (token[:, None] * heads + head[None, :]) * (2 * half)
    out += row[:, :, None] + column[None, None, :]
    straight = (first * cos_first[:, None, :]).to(dtype).to(tl.float32)
    crossed = (-second * sin_first[:, None, :]).to(dtype).to(tl.float32)
    tl.store(out, (straight + crossed).to(dtype), mask=mask)
    straight = (second * cos_second[:, None, :]).to(dtype).to(tl.float32)
    crossed = (first * sin_second[:, None, :]).to(dtype).to(tl.float32)
    tl.store(out + half, (straight + crossed).to(dtype), mask=mask)
