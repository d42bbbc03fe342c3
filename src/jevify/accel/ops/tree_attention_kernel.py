"""Token-tree attention in one Triton launch, or two when long key ranges are split.

An online softmax in base 2 (Dao 2023, arXiv:2307.08691) over the ranges of a `TreeLayout`. All query heads of one key
head share a tile, so that a handful of rows fills a matrix product and keys are read once for the whole group.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from jevify.accel.ops.tree_layout import TreeLayout
from jevify.accel.ops.triton_runtime import jit, tl

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Scores are kept in base 2, also in the partials that a merge combines: exp2 is the instruction the hardware has.
LOG2_E = 1.4426950408889634
# Rows of a partial that one program merges.
MERGE_ROWS = 16


@jit()
def _chunk(  # type: ignore[no-untyped-def]
    q,
    acc,
    peak,
    total,
    keys,
    values,
    k_stride,
    v_stride,
    start,
    joint,
    jump,
    at,
    stop,
    row,
    ends,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    OWN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold keys [at, at + BLOCK_N) of a range into acc, peak and total.

    MASKED ones end at `stop` and, if OWN, are seen by the rows that `ends` says.
    """
    step = at + tl.arange(0, BLOCK_N)
    d = tl.arange(0, HEAD_DIM)
    n = start + step + tl.where(step < joint, 0, jump)
    inside = step < stop
    k_at = keys + n.to(tl.int64)[None, :] * k_stride + d[:, None]
    v_at = values + n.to(tl.int64)[:, None] * v_stride + d[None, :]
    k = tl.load(k_at, mask=inside[None, :], other=0.0) if MASKED else tl.load(k_at)
    score = tl.dot(q, k, input_precision=PRECISION)
    if MASKED:
        if OWN:
            end = tl.load(ends + n, mask=inside, other=0)
            seen = (n[None, :] <= row[:, None]) & (row[:, None] < end[None, :])
        else:
            seen = inside[None, :]
        score = tl.where(seen, score, float("-inf"))
    top = tl.maximum(peak, tl.max(score, 1) * scale)
    # A row that has seen no key yet must not compute -inf - -inf.
    base = tl.where(top == float("-inf"), 0.0, top) if MASKED else top
    weight = tl.exp2(score * scale - base[:, None])
    fade = tl.exp2(peak - base)
    total = total * fade + tl.sum(weight, 1)
    acc = acc * fade[:, None]
    # A hidden key weighs zero but must be finite all the same: rows past the range are not read.
    v = tl.load(v_at, mask=inside[:, None], other=0.0) if MASKED else tl.load(v_at)
    acc = tl.dot(weight.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, top, total


@jit()
def _walk(  # type: ignore[no-untyped-def]
    q,
    acc,
    peak,
    total,
    keys,
    values,
    k_stride,
    v_stride,
    spans,
    span_stride,
    lo,
    hi,
    local,
    whole,
    row_stop,
    walked,
    first,
    last,
    row,
    ends,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    OWN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold spans[lo:hi] and, if OWN, keys [local, row_stop); `walked` keys of the item's walk lie before them.

    The last span and the pass's own keys are one range with a jump in it: short branches then need no more than one
    loop over whole chunks and one over masked ones.
    """
    for index in range(lo, tl.maximum(hi, lo + OWN)):
        listed = index < hi
        start = tl.load(spans + index, mask=listed, other=0)
        joint = tl.load(spans + span_stride + index, mask=listed, other=0) - start
        jump = 0
        seen_by_all = joint
        size = joint
        if OWN:
            closing = index + 1 >= hi
            jump = tl.where(closing, local - start - joint, 0)
            seen_by_all += tl.where(closing, whole - local, 0)
            size += tl.where(closing, row_stop - local, 0)
        begin = tl.maximum(first - walked, 0)
        finish = tl.minimum(last - walked, size)
        full = begin + tl.maximum(tl.minimum(seen_by_all, finish) - begin, 0) // BLOCK_N * BLOCK_N
        for at in range(begin, full, BLOCK_N):
            acc, peak, total = _chunk(
                q, acc, peak, total, keys, values, k_stride, v_stride, start, joint, jump, at, finish, row, ends, scale,
                HEAD_DIM, BLOCK_N, False, OWN, PRECISION,
            )  # fmt: skip
        for at in range(full, finish, BLOCK_N):
            acc, peak, total = _chunk(
                q, acc, peak, total, keys, values, k_stride, v_stride, start, joint, jump, at, finish, row, ends, scale,
                HEAD_DIM, BLOCK_N, True, OWN, PRECISION,
            )  # fmt: skip
        walked += size
    return acc, peak, total, walked


@jit()
def _attend(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    carried_k_ptr,
    carried_v_ptr,
    out_ptr,
    partial_ptr,
    items,
    item_stride,
    spans,
    span_stride,
    ends,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    carried_k_row,
    carried_k_head,
    carried_v_row,
    carried_v_head,
    out_row,
    out_head,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CARRIED: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # One grid axis: the others end at 65,535. Key heads innermost, so that the longest items start first for all.
    program = tl.program_id(0)
    item = items + program // KV_HEADS
    kv_head = (program % KV_HEADS).to(tl.int64)
    row_start = tl.load(item)
    row_stop = tl.load(item + item_stride)
    if row_start == row_stop:
        return
    lo = tl.load(item + 2 * item_stride)
    mid = tl.load(item + 3 * item_stride)
    hi = tl.load(item + 4 * item_stride)
    local = tl.load(item + 5 * item_stride)
    whole = tl.load(item + 6 * item_stride)
    first = tl.load(item + 7 * item_stride)
    last = tl.load(item + 8 * item_stride)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_DIM)
    row = row_start + m // GROUP
    head = kv_head * GROUP + m % GROUP
    # Heads and rows that do not divide the tile leave lanes at its end: they compute on zeros and store nothing.
    alive = (m < BLOCK_M // GROUP * GROUP) & (row < row_stop)
    q_at = q_ptr + row.to(tl.int64)[:, None] * q_row + head[:, None] * q_head + d[None, :]
    q = tl.load(q_at, mask=alive[:, None], other=0.0)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    walked = 0
    if CARRIED:
        acc, peak, total, walked = _walk(
            q, acc, peak, total, carried_k_ptr + kv_head * carried_k_head, carried_v_ptr + kv_head * carried_v_head,
            carried_k_row, carried_v_row, spans, span_stride, lo, mid, 0, 0, 0, walked, first, last, row, ends, scale,
            HEAD_DIM, BLOCK_N, False, PRECISION,
        )  # fmt: skip
    acc, peak, total, walked = _walk(
        q, acc, peak, total, k_ptr + kv_head * k_head, v_ptr + kv_head * v_head, k_row, v_row,
        spans, span_stride, mid, hi, local, whole, row_stop, walked, first, last, row, ends, scale,
        HEAD_DIM, BLOCK_N, True, PRECISION,
    )  # fmt: skip

    out_at = out_ptr + row.to(tl.int64)[:, None] * out_row + head[:, None] * out_head + d[None, :]
    part = -1
    if PARTS:
        part = tl.load(item + 9 * item_stride)
        if part >= 0:
            # [parts, KV_HEADS, BLOCK_M, HEAD_DIM + 2]: the unscaled sum, then its peak and total.
            slot = ((part.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_M + m) * (HEAD_DIM + 2)
            tl.store(partial_ptr + slot[:, None] + d[None, :], acc, mask=alive[:, None])
            tl.store(partial_ptr + slot + HEAD_DIM, peak, mask=alive)
            tl.store(partial_ptr + slot + HEAD_DIM + 1, total, mask=alive)
    if part < 0:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=alive[:, None])


@jit()
def _merge(  # type: ignore[no-untyped-def]
    partial_ptr,
    out_ptr,
    merges,
    merge_stride,
    out_row,
    out_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
):
    program = tl.program_id(0)
    merge = merges + program // (KV_HEADS * (BLOCK_M // ROWS))
    kv_head = (program // (BLOCK_M // ROWS) % KV_HEADS).to(tl.int64)
    row_start = tl.load(merge)
    row_stop = tl.load(merge + merge_stride)
    part = tl.load(merge + 2 * merge_stride)
    count = tl.load(merge + 3 * merge_stride)
    m = program % (BLOCK_M // ROWS) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    row = row_start + m // GROUP
    head = kv_head * GROUP + m % GROUP
    alive = (m < BLOCK_M // GROUP * GROUP) & (row < row_stop)
    acc = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for index in range(part, part + count):
        slot = ((tl.cast(index, tl.int64) * KV_HEADS + kv_head) * BLOCK_M + m) * (HEAD_DIM + 2)
        their_peak = tl.load(partial_ptr + slot + HEAD_DIM, mask=alive, other=float("-inf"))
        their_total = tl.load(partial_ptr + slot + HEAD_DIM + 1, mask=alive, other=0.0)
        their_acc = tl.load(partial_ptr + slot[:, None] + d[None, :], mask=alive[:, None], other=0.0)
        top = tl.maximum(peak, their_peak)
        base = tl.where(top == float("-inf"), 0.0, top)
        fade, theirs = tl.exp2(peak - base), tl.exp2(their_peak - base)
        total = total * fade + their_total * theirs
        acc = acc * fade[:, None] + their_acc * theirs[:, None]
        peak = top
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_at = out_ptr + row.to(tl.int64)[:, None] * out_row + head[:, None] * out_head + d[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=alive[:, None])


def fused_tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: TreeLayout,
    scale: float,
    carried: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Softmax attention of packed rows; the contract of `tree_attention`, without copying or padding a key.

    q: [T, Hq, D]; k, v: [T, Hkv, D] and carried: keys and values [C, Hkv, D] (None when C is 0), or k, v: [C + T, Hkv,
    D] with the carried rows first and no `carried`. Any row and head strides, the last dimension contiguous; one dtype
    of float16, bfloat16 or float32 (products in full float32, sums always); D one of 16, 32, 64, 128. T and C are the
    layout's, padding included; its table lies on the same device. Padding rows come out zero. Returns a new [T, Hq, D].
    Raises ValueError on anything else, and Triton's own error when the tile needs more than the device has.
    """
    shape, tile = layout.shape, layout.shape.tile
    if carried is None and shape.carried:
        _check_rows("k and v", shape.carried + shape.rows, k, v)
        carried, k, v = (k[: shape.carried], v[: shape.carried]), k[shape.carried :], v[shape.carried :]
    _check(q, k, v, carried, layout, scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    heads, kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[2]
    group = heads // kv_heads
    if not shape.items:
        return out
    past_k, past_v = carried or (k, v)
    items, spans, ends, merges = layout.sections
    partials = out
    if shape.parts:
        room = (shape.parts, kv_heads, tile.block_m, head_dim + 2)
        partials = torch.empty(room, dtype=torch.float32, device=q.device)
    with _current(q.device):
        _attend[(shape.items * kv_heads,)](
            q, k, v, past_k, past_v, out, partials, items, shape.items, spans, shape.spans, ends,
            *_strides(q, k, v, past_k, past_v, out), scale * LOG2_E,
            KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
            CARRIED=shape.carried > 0, PARTS=shape.parts > 0, PRECISION="ieee",
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if shape.merges:
            _merge[(shape.merges * kv_heads * (tile.block_m // MERGE_ROWS),)](
                partials, out, merges, shape.merges, *_strides(out),
                KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_M=tile.block_m, ROWS=MERGE_ROWS, num_warps=4,
            )  # fmt: skip
    return out


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Makes `device` the current one, which is where Triton launches."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    return nullcontext()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _check_rows(name: str, rows: int, *tensors: Tensor) -> None:
    if any(tensor.ndim != 3 or tensor.shape[0] != rows for tensor in tensors):
        raise ValueError(f"{name} must be [{rows}, heads, D]: the layout's rows")


def _check(
    q: Tensor, k: Tensor, v: Tensor, carried: tuple[Tensor, Tensor] | None, layout: TreeLayout, scale: float
) -> None:
    shape, table = layout.shape, layout.table
    _check_rows("q, k and v", shape.rows, q, k, v)
    tensors = (q, k, v, *carried) if carried else (q, k, v)
    if carried:
        _check_rows("the carried keys and values", shape.carried, *tensors[3:])
    dtype, device, (_, heads, head_dim), kv_heads = q.dtype, q.device, q.shape, k.shape[1]
    for tensor in tensors:
        if tensor.dtype != dtype or tensor.device != device or tensor.shape[2] != head_dim:
            raise ValueError("queries, keys and values must share dtype, device and head size")
        if tensor.shape[1] != kv_heads and tensor is not q:
            raise ValueError("keys and values must have as many heads")
        if tensor.stride(2) != 1:
            raise ValueError("queries, keys and values must be contiguous in their last dimension")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError("tree attention has no backward; call it under torch.inference_mode or no_grad")
    if dtype not in DTYPES or head_dim not in HEAD_DIMS:
        raise ValueError(f"tree attention takes {DTYPES} and head sizes {HEAD_DIMS}, not {dtype} and {head_dim}")
    if not kv_heads or not heads or heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    if shape.tile.rows(heads // kv_heads) != shape.tile_rows:
        raise ValueError(f"the layout holds tiles of {shape.tile_rows} rows, not for these heads")
    if table.device != device or table.dtype != torch.int32 or not table.is_contiguous():
        raise ValueError(f"the layout's table must be contiguous int32 on {device}")
    if not 0 < scale < float("inf"):
        raise ValueError(f"the scale must be positive and finite, not {scale}")
