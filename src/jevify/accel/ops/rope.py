"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), with a head's two halves rotated against each other."""

import torch
from torch import Tensor


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
