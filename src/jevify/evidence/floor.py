"""The least time a pass can take: bytes of weights over bandwidth, or arithmetic over the rate, whichever is more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jevify.evidence.expected import RequestSize

_DECIMALS = 4
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class Machine:
    """Measured limits of a GPU: bytes a second of a device copy, operations a second of a 16-bit matrix product."""

    name: str
    bandwidth: float
    rate: float


# A device copy and a large bf16 product under torch 2.11.0+cu130.
H200 = Machine("NVIDIA H200", bandwidth=4.29e12, rate=779e12)
MACHINES = {machine.name: machine for machine in (H200,)}


@dataclass(frozen=True)
class Floor:
    """Milliseconds of one pass at the limits of `machine`; `ms` is the larger of the two."""

    machine: str
    weights_ms: float
    arithmetic_ms: float

    @property
    def ms(self) -> float:
        """The floor."""
        return max(self.weights_ms, self.arithmetic_ms)

    def data(self) -> dict[str, Any]:
        """The floor as JSON data."""
        times = {"weights_ms": self.weights_ms, "arithmetic_ms": self.arithmetic_ms, "ms": self.ms}
        return {"machine": self.machine, **{name: round(value, _DECIMALS) for name, value in times.items()}}


def machine_of(device: str) -> Machine | None:
    """The limits of a torch device; None where they were not measured."""
    if not device.startswith("cuda"):
        return None
    return MACHINES.get(torch.cuda.get_device_name(device))


def layer_parameters(config: Any) -> int:
    """Values of the projection weights of all layers of a dense transformers config; norms and head left out."""
    hidden, heads, size = config.hidden_size, config.num_attention_heads, head_size(config)
    attention = hidden * size * (2 * heads + 2 * config.num_key_value_heads)
    return config.num_hidden_layers * (attention + 3 * hidden * config.intermediate_size)


def head_size(config: Any) -> int:
    """Values of one attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def attention_operations(config: Any, visible: int) -> int:
    """Operations of attention in all layers, for `visible` pairs of a row and a key that it sees."""
    return 4 * config.num_hidden_layers * config.num_attention_heads * head_size(config) * visible


def floor_of(config: Any, sizes: Sequence[RequestSize], machine: Machine | None, dtype: str) -> Floor | None:
    """The floor of one pass over all tokens of requests of these sizes, nothing computed twice.

    None for an unmeasured machine, and in float32, whose product rate is another.
    """
    if machine is None or dtype not in _HALF:
        return None
    parameters = layer_parameters(config)
    operations = 2 * parameters * sum(size.packed_tokens for size in sizes)
    operations += attention_operations(config, sum(size.visible_keys for size in sizes))
    return Floor(
        machine.name,
        weights_ms=2 * parameters / machine.bandwidth * 1e3,
        arithmetic_ms=operations / machine.rate * 1e3,
    )
