"""How the packed decoder attends: reference SDPA calls, or the token-tree kernel."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from jevify.accel.crossover import CrossoverMap, Replaced
from jevify.accel.ops.tree_attention import Call, plan_calls, tree_attention
from jevify.accel.ops.tree_attention_kernel import DTYPES, HEAD_DIMS, fused_tree_attention
from jevify.accel.ops.tree_layout import STEP, LayoutShape, TreeLayout, plan_layout
from jevify.accel.ops.tree_tiles import tile_for
from jevify.accel.ops.triton_runtime import INTERPRETED, build_errors, failure
from jevify.accel.tree import Pass
from jevify.errors import SettingError
from jevify.models.lm.weights import DenseWeights

# Spare work items and spans of a padded layout: room for several dozen branches before its shape changes.
PADDED_SLACK = 64

# Keys and values of earlier passes, [C, Hkv, D] each.
Past = tuple[Tensor, Tensor] | None
# (q [T, Hq, D], k and v [T, Hkv, D], past, scale) -> [T, Hq, D]
Attend = Callable[[Tensor, Tensor, Tensor, Past, float], Tensor]


class AttendRows(Protocol):
    """The attention of one planned pass."""

    @property
    def table(self) -> Tensor:
        """Its layout on the host, int32."""
        ...

    @property
    def rows(self) -> int:
        """The query rows it expects, those that pad the pass included."""
        ...

    @property
    def carried(self) -> int:
        """The key rows it expects from earlier passes."""
        ...

    @property
    def key(self) -> Hashable:
        """What a captured graph fixes of it."""
        ...

    def on(self, table: Tensor) -> Attend:
        """The attention with its layout on the device as `table`."""
        ...


class Attention(Protocol):
    """Plans the attention of passes. `name` is what metadata says."""

    name: str

    def plan(self, step: Pass, rows: int | None = None) -> AttendRows:
        """The attention of one pass. rows: how many rows to pad it to, where the attention can."""
        ...

    def counters(self) -> Mapping[str, Any]:
        """How many passes were planned each way, and the last reason against the kernel."""
        ...


@dataclass(frozen=True)
class _Calls:
    calls: Sequence[Call]
    rows: int
    carried: int
    key: Hashable
    table: Tensor

    def on(self, table: Tensor) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor, past: Past, scale: float) -> Tensor:
            if past is not None:
                k, v = torch.cat((past[0], k)), torch.cat((past[1], v))
            return tree_attention(q, k, v, self.calls, scale)

        return attend


class ReferenceAttention:
    """SDPA calls over visible blocks. A graph of it fixes the blocks themselves, so it never pads."""

    name = "reference"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._empty = torch.empty(0, dtype=torch.int32)
        self._planned = 0

    def plan(self, step: Pass, rows: int | None = None) -> AttendRows:
        """See Attention."""
        self._planned += 1
        calls = plan_calls(step.blocks, step.carried, self._device, self._dtype)
        return _Calls(calls, len(step.token_ids), step.carried, (step.blocks, step.carried), self._empty)

    def counters(self) -> Mapping[str, Any]:
        """See Attention."""
        return {"reference": self._planned}


@dataclass(frozen=True)
class _Kernel:
    layout: TreeLayout

    @property
    def rows(self) -> int:
        return self.layout.shape.rows

    @property
    def carried(self) -> int:
        return self.layout.shape.carried

    @property
    def table(self) -> Tensor:
        return self.layout.table

    @property
    def key(self) -> LayoutShape:
        return self.layout.shape

    def on(self, table: Tensor) -> Attend:
        layout = TreeLayout(table, self.layout.shape)
        return lambda q, k, v, past, scale: fused_tree_attention(q, k, v, layout, scale, past)


class KernelAttention:
    """The token-tree kernel. A graph of it fixes sizes only.

    specialize_short: smaller tiles for passes of few rows. fallback: what serves the passes whose kernel cannot be
    built or needs more than the device has, which is found out at the first of them and remembered; None makes that a
    SettingError. Errors of the device surface. crossover: where it says so, the fallback is used for being faster.
    """

    name = "kernel"

    def __init__(
        self,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        specialize_short: bool,
        fallback: ReferenceAttention | None = None,
        crossover: CrossoverMap | None = None,
    ) -> None:
        self._crossover = crossover
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._dtype, self._device, self._specialize_short = dtype, device, specialize_short
        self._fallback = fallback
        self._processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
        )
        self._reasons: dict[Hashable, str | None] = {}
        self._planned = 0
        self._last_fallback: str | None = None

    def plan(self, step: Pass, rows: int | None = None) -> AttendRows:
        """See Attention. Raises SettingError without a fallback."""
        planned = self.try_plan(step, rows)
        if planned is not None:
            return planned
        self.check_optional()
        assert self._fallback is not None
        return self._fallback.plan(step)

    def check_optional(self) -> None:
        """Raise SettingError, with the last reason against the kernel, where nothing may take its place."""
        if self._fallback is None:
            raise SettingError(f"--shared-attention on: {self._last_fallback}")

    def try_plan(self, step: Pass, rows: int | None = None, *, instead_of: Replaced = "calls") -> AttendRows | None:
        """As `plan`, or None where the kernel cannot run, or is slower than what it would be used instead of.

        A pass to be padded is not asked whether it is slower: nothing else can pad it.
        """
        crossover = None if rows else self._crossover
        if crossover is not None and not crossover.prefers_kernel(*_sizes(step), instead_of=instead_of):
            self._last_fallback = f"slower than {_REPLACED[instead_of]} at this size, {crossover.source}"
            return None
        # Padded layouts have one shape for passes of any depth: no choice by the longest path, no split of its keys.
        path = 0 if rows else max(step.positions) + 1
        tile = tile_for(
            rows or len(step.token_ids),
            path,
            heads=self._heads,
            kv_heads=self._kv_heads,
            dtype=self._dtype,
            processors=self._processors,
            specialize_short=self._specialize_short,
        )
        layout = plan_layout(
            step,
            tile,
            heads=self._heads,
            kv_heads=self._kv_heads,
            processors=0 if rows else self._processors,
            rows=rows,
            slack=PADDED_SLACK if rows else STEP,
        )
        # What Triton compiles anew.
        variant = (tile, layout.shape.carried > 0, layout.shape.parts > 0)
        if variant not in self._reasons:
            self._reasons[variant] = self._failure(layout)
        if (reason := self._reasons[variant]) is not None:
            self._last_fallback = reason
            return None
        self._planned += 1
        return _Kernel(layout)

    def counters(self) -> Mapping[str, Any]:
        """See Attention."""
        crossover = "not asked" if self._crossover is None else self._crossover.source
        found = {"kernel": self._planned, "last_fallback": self._last_fallback, "crossover": crossover}
        return found if self._fallback is None else {**found, **self._fallback.counters()}

    def _failure(self, layout: TreeLayout) -> str | None:
        """Why the kernel cannot be built for `layout`, found by running it on zeros; None when it ran."""
        shape = layout.shape
        q, k, past = (
            torch.zeros(rows, heads, self._head_dim, dtype=self._dtype, device=self._device)
            for rows, heads in (
                (shape.rows, self._heads),
                (shape.rows, self._kv_heads),
                (shape.carried, self._kv_heads),
            )
        )
        try:
            carried = (past, past) if shape.carried else None
            fused_tree_attention(q, k, k, layout.to(self._device), 1.0, carried)
        except build_errors() as error:
            return f"the kernel cannot be built for {shape.tile}: {type(error).__name__}: {error}"
        return None


_REPLACED: Mapping[Replaced, str] = {"calls": "SDPA calls", "repeat": "repeating the prefix"}


def _sizes(step: Pass) -> tuple[int, int, int]:
    """Of a pass: tokens before a branch, branches of a request, and tokens of a branch, as averages."""
    behind = [
        (sum(stop - start for start, stop in block.ancestors), length)
        for block in step.blocks
        if block.ancestors
        for length in block.segments
    ]
    if not behind:
        return 1, 1, len(step.token_ids)
    requests = max(1, sum(not block.ancestors for block in step.blocks))
    prefix, rows = (sum(column) // len(behind) for column in zip(*behind, strict=True))
    return prefix, max(1, len(behind) // requests), rows


def pick_attention(
    weights: DenseWeights, wanted: str, *, specialize_short: bool
) -> tuple[ReferenceAttention | KernelAttention, str | None]:
    """The attention for "auto", "on" or "off", and why the kernel is not used where it is not.

    Raises SettingError under "on" when the kernel cannot run.
    """
    device, dtype = weights.embedding.device, weights.embedding.dtype
    reference = ReferenceAttention(device, dtype)
    if wanted == "off":
        return reference, "turned off"
    reason = failure(str(device)) if device.type == "cuda" or INTERPRETED else "the kernel needs a CUDA device"
    if dtype not in DTYPES or weights.head_dim not in HEAD_DIMS:
        reason = f"the kernel takes no head size {weights.head_dim} in {dtype}"
    if reason is None and (device.type == "cuda" or wanted == "on"):
        kernel = KernelAttention(
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            dtype=dtype,
            device=device,
            specialize_short=specialize_short,
            fallback=reference if wanted == "auto" else None,
            crossover=_crossover(device) if wanted == "auto" else None,
        )
        return kernel, None
    if wanted == "on":
        raise SettingError(f"--shared-attention on: {reason}")
    return reference, reason or "the interpreter is for tests"


def _crossover(device: torch.device) -> CrossoverMap | None:
    return CrossoverMap.of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
