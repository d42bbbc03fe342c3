"""Each fused kernel beside its reference on a model's shapes: what to time, the bytes to move, how exact it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jevify.accel.ops import rms_norm as norm
from jevify.accel.ops import rope as rotary
from jevify.accel.ops import swiglu as gated

_EPS = 1e-6
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


@dataclass(frozen=True)
class DenseShape:
    """Sizes of a dense decoder; head_norms: whether queries and keys are normalized, as in Qwen3."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    head_norms: bool = False


# Takes the inputs of its case and returns new tensors.
Operation = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class KernelCase:
    """One operation on fixed inputs; both ways to run it take `inputs` and return tensors in the same order.

    bytes_moved: inputs read once plus outputs written once, the least any implementation can move.
    """

    name: str
    inputs: tuple[Tensor, ...]
    kernel: Operation
    reference: Operation
    bytes_moved: int

    def copied_inputs(self) -> tuple[Tensor, ...]:
        """The inputs in memory of their own, with their values and strides."""
        return tuple(_copy(tensor) for tensor in self.inputs)


@dataclass(frozen=True)
class Exactness:
    """Share of values that differ, and the largest number of representable values between a pair."""

    mismatch: float
    ulp: int


def kernel_cases(
    shape: DenseShape, tokens: int, *, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> list[KernelCase]:
    """A case for each fused kernel over `tokens` rows of random values; the kernels need what `fused_ops` checks."""
    generator = torch.Generator(device).manual_seed(seed)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device).to(dtype)

    x, residual, weight = random(tokens, shape.hidden), random(tokens, shape.hidden), random(shape.hidden)
    gate_up = random(tokens, 2 * shape.intermediate)
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    # As the decoder has them: views of the merged product.
    q, k, _ = random(tokens, sum(heads), shape.head_size).split(heads, dim=1)
    half = shape.head_size // 2
    frequencies = 1.0 / 10_000 ** (torch.arange(half, device=device) / half)
    cos, sin = rotary.rotary_table(torch.arange(tokens, device=device), frequencies, 1.0, dtype)
    norms = (random(shape.head_size), random(shape.head_size)) if shape.head_norms else ()
    size = dtype.itemsize
    return [
        KernelCase(
            "rmsnorm",
            (x, weight),
            lambda x, weight: (norm.rms_norm_kernel(x, weight, _EPS),),
            lambda x, weight: (norm.rms_norm(x, weight, _EPS),),
            size * (2 * x.numel() + weight.numel()),
        ),
        KernelCase(
            "residual_norm",
            (x, residual, weight),
            lambda x, residual, weight: norm.residual_rms_norm_kernel(x, residual, weight, _EPS),
            lambda x, residual, weight: norm.residual_rms_norm(x, residual, weight, _EPS),
            size * (4 * x.numel() + weight.numel()),
        ),
        KernelCase(
            "swiglu",
            (gate_up,),
            lambda gate_up: (gated.swiglu_kernel(gate_up),),
            lambda gate_up: (gated.swiglu(gate_up),),
            size * (gate_up.numel() + gate_up.numel() // 2),
        ),
        KernelCase(
            "rope",
            (q, k, cos, sin, *norms),
            lambda *inputs: rotary.norm_rope_kernel(*_with_eps(inputs)),
            lambda *inputs: rotary.norm_rope(*_with_eps(inputs)),
            size * (2 * (q.numel() + k.numel()) + cos.numel() + sin.numel()),
        ),
    ]


def _with_eps(inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Arguments of norm_rope: q, k, cos, sin, and the norms of q and k where there are any."""
    return (*inputs, _EPS) if len(inputs) > 4 else inputs


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def exactness(found: Tensor, wanted: Tensor) -> Exactness:
    """Compare two tensors of one shape and dtype (fp16, bf16, fp32); -0 equals 0.

    Raises ValueError for different shapes or dtypes and for NaN, which has no distance.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ValueError(
            f"{found.dtype} {tuple(found.shape)} cannot be compared with {wanted.dtype} {tuple(wanted.shape)}"
        )
    if found.isnan().any() or wanted.isnan().any():
        raise ValueError("there is a NaN")
    if found.numel() == 0:
        return Exactness(0.0, 0)
    distance = (_order(found) - _order(wanted)).abs()
    return Exactness((distance > 0).double().mean().item(), int(distance.max()))


def _order(values: Tensor) -> Tensor:
    """Whole numbers in the order of `values`, neighbours one apart."""
    bits = values.contiguous().view(_BITS[values.dtype]).long()
    lowest = torch.iinfo(_BITS[values.dtype]).min
    return torch.where(bits < 0, lowest - bits, bits)
