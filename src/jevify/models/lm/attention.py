"""How the packed decoder attends: reference SDPA calls, or the token-tree kernel."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jevify.accel.ops.tree_attention import Call, plan_calls, tree_attention
from jevify.accel.ops.tree_attention_kernel import DTYPES, HEAD_DIMS, fused_tree_attention
from jevify.accel.ops.tree_layout import LayoutShape, TreeLayout, plan_layout
from jevify.accel.ops.tree_tiles import tile_for
from jevify.accel.ops.triton_runtime import INTERPRETED, failure
from jevify.accel.tree import Pass
from jevify.errors import SettingError
from jevify.models.lm.weights import DenseWeights

# (q [T, Hq, D], k and v [C + T, Hkv, D], scale) -> [T, Hq, D]
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class AttendRows(Protocol):
    """The attention of one planned pass."""

    @property
    def table(self) -> Tensor:
        """Its layout on the host, int32."""
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

    def plan(self, step: Pass) -> AttendRows:
        """The attention of one pass."""
        ...


@dataclass(frozen=True)
class _Calls:
    calls: Sequence[Call]
    carried: int
    key: Hashable
    table: Tensor

    def on(self, table: Tensor) -> Attend:
        return lambda q, k, v, scale: tree_attention(q, k, v, self.calls, scale)


class ReferenceAttention:
    """SDPA calls over visible blocks. A graph of it fixes the blocks themselves."""

    name = "reference"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._empty = torch.empty(0, dtype=torch.int32)

    def plan(self, step: Pass) -> AttendRows:
        """See Attention."""
        calls = plan_calls(step.blocks, step.carried, self._device, self._dtype)
        return _Calls(calls, step.carried, (step.blocks, step.carried), self._empty)


@dataclass(frozen=True)
class _Kernel:
    layout: TreeLayout

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
        return lambda q, k, v, scale: fused_tree_attention(q, k, v, layout, scale)


class KernelAttention:
    """The token-tree kernel. A graph of it fixes sizes only. specialize_short: smaller tiles for passes of few rows."""

    name = "kernel"

    def __init__(
        self, *, heads: int, kv_heads: int, dtype: torch.dtype, processors: int, specialize_short: bool
    ) -> None:
        self._heads, self._kv_heads, self._dtype = heads, kv_heads, dtype
        self._processors, self._specialize_short = processors, specialize_short

    def plan(self, step: Pass) -> AttendRows:
        """See Attention."""
        tile = tile_for(
            len(step.token_ids),
            max(step.positions) + 1,
            heads=self._heads,
            kv_heads=self._kv_heads,
            dtype=self._dtype,
            processors=self._processors,
            specialize_short=self._specialize_short,
        )
        layout = plan_layout(step, tile, heads=self._heads, kv_heads=self._kv_heads, processors=self._processors)
        return _Kernel(layout)


def pick_attention(weights: DenseWeights, wanted: str, *, specialize_short: bool) -> tuple[Attention, str | None]:
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
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
        kernel = KernelAttention(
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            dtype=dtype,
            processors=processors,
            specialize_short=specialize_short,
        )
        return kernel, None
    if wanted == "on":
        raise SettingError(f"--shared-attention on: {reason}")
    return reference, reason or "the interpreter is for tests"
