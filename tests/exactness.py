"""How far two tensors are apart, counted in representable numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor

_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


@dataclass(frozen=True)
class Exactness:
    """Share of values that differ, and the largest number of representable values between a pair."""

    mismatch: float
    ulp: int


def exactness(found: Tensor, wanted: Tensor) -> Exactness:
    """Compare two tensors of one shape and dtype; -0 equals 0, and neither may hold a NaN."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert not found.isnan().any()
    assert not wanted.isnan().any()
    if found.numel() == 0:
        return Exactness(0.0, 0)
    distance = (_order(found) - _order(wanted)).abs()
    return Exactness((distance > 0).double().mean().item(), int(distance.max()))


def _order(values: Tensor) -> Tensor:
    """Whole numbers in the order of `values`, neighbours one apart."""
    bits = values.contiguous().view(_BITS[values.dtype]).long()
    lowest = torch.iinfo(_BITS[values.dtype]).min
    return torch.where(bits < 0, lowest - bits, bits)
