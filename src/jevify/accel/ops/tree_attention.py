"""Attention over a packed token tree: each row sees its ancestors whole and its own segment causally."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.tree import Block


@dataclass(frozen=True)
class Call:
    """One SDPA call: query rows [start, stop), key slots `slots` (a slice or an int64 index), visibility `mask`.

    mask: [stop - start, keys], 0 where a row sees a key and -inf where it does not; None for a plain causal square.
    """

    start: int
    stop: int
    slots: slice | Tensor
    mask: Tensor | None


def plan_calls(blocks: Sequence[Block], carried: int, device: torch.device, dtype: torch.dtype) -> list[Call]:
    """Turn the blocks of a pass into SDPA calls that touch visible blocks only.

    Neither many roots nor many branches cost a quadratic mask: the keys of a call are the block's ancestors and its own
    rows. Equal blocks share one mask tensor, of the queries' `dtype`: SDPA would convert a bool mask in every call.
    """
    masks: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    calls = []
    for block in blocks:
        own = (carried + block.start, carried + block.stop)
        spans = [*block.ancestors, own]
        if len(spans) == 1 and len(block.segments) == 1:
            calls.append(Call(block.start, block.stop, slice(*own), None))
            continue
        seen = sum(stop - start for start, stop in block.ancestors)
        key = (seen, block.segments)
        if key not in masks:
            masks[key] = _mask(seen, block.segments, device, dtype)
        if all(left[1] == right[0] for left, right in pairwise(spans)):
            slots: slice | Tensor = slice(spans[0][0], own[1])
        else:
            slots = torch.cat([torch.arange(*span, device=device) for span in spans])
        calls.append(Call(block.start, block.stop, slots, masks[key]))
    return calls


def _mask(seen: int, segments: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    own = torch.block_diag(*(torch.ones(length, length).tril() for length in segments))
    visible = torch.cat((torch.ones(own.shape[0], seen), own), dim=1).bool()
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf).to(device)


def tree_attention(q: Tensor, k: Tensor, v: Tensor, calls: Sequence[Call], scale: float) -> Tensor:
    """Softmax attention of packed rows.

    q: [T, Hq, D]; k, v: [C + T, Hkv, D] with the C carried rows first; Hq is a multiple of Hkv and query head h reads
    key head h // (Hq / Hkv). Rows not covered by a call are left undefined. Returns [T, Hq, D].
    """
    out = torch.empty_like(q)
    grouped = q.shape[1] != k.shape[1]
    for call in calls:
        queries, keys, values = (
            rows.transpose(0, 1)[None] for rows in (q[call.start : call.stop], k[call.slots], v[call.slots])
        )
        attended = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=call.mask,
            is_causal=call.mask is None,
            scale=scale,
            enable_gqa=grouped,
        )
        out[call.start : call.stop] = attended[0].transpose(0, 1)
    return out
