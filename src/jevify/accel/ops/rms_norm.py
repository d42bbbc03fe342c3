"""Root-mean-square normalization (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [..., H] fp16, bf16 or fp32, any strides; weight: [H] of the same dtype. The statistics and the scaling are fp32;
    the normalized value is rounded to x's dtype *before* the weight multiplies it. Returns a new tensor like x.
    """
    wide = x.float()
    normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normalized.to(x.dtype)


def residual_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual stream, then normalize the sum *as rounded to x's dtype*.

    x, residual: [..., H] of one dtype. Returns (normalized sum, sum), both new tensors.
    """
    total = residual + x
    return rms_norm(total, weight, eps), total
