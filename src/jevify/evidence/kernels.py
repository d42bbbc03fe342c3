"""Each fused kernel beside its reference on a model's shapes: what to time, the bytes to move, how exact it is."""

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class KernelCase:
    """One operation on fixed inputs. Both calls return new tensors in the same order.

    bytes_moved: inputs read once plus outputs written once, the least any implementation can move.
    """

    name: str
    kernel: Callable[[], tuple[Tensor, ...]]
    reference: Callable[[], tuple[Tensor, ...]]
    bytes_moved: int


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
    q_norm, k_norm = ((random(shape.head_size) if shape.head_norms else None) for _ in range(2))
    size = dtype.itemsize
    return [
        KernelCase(
            "rmsnorm",
            lambda: (norm.rms_norm_kernel(x, weight, _EPS),),
            lambda: (norm.rms_norm(x, weight, _EPS),),
            size * (2 * x.numel() + weight.numel()),
        ),
        KernelCase(
            "residual_norm",
            lambda: norm.residual_rms_norm_kernel(x, residual, weight, _EPS),
            lambda: norm.residual_rms_norm(x, residual, weight, _EPS),
            size * (4 * x.numel() + weight.numel()),
        ),
        KernelCase(
            "swiglu",
            lambda: (gated.swiglu_kernel(gate_up),),
            lambda: (gated.swiglu(gate_up),),
            size * (gate_up.numel() + gate_up.numel() // 2),
        ),
        KernelCase(
            "rope",
            lambda: rotary.norm_rope_kernel(q, k, cos, sin, q_norm, k_norm, _EPS),
            lambda: rotary.norm_rope(q, k, cos, sin, q_norm, k_norm, _EPS),
            size * (2 * (q.numel() + k.numel()) + cos.numel() + sin.numel()),
        ),
    ]


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
