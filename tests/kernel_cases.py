"""Inputs for every fused kernel beside its reference, shared by the interpreter's tests and the GPU's."""

import torch

from jevify.accel.ops import rms_norm as norm
from jevify.accel.ops import rope as rotary
from jevify.accel.ops import swiglu as gated

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPS = 1e-6


def random(*shape, dtype, device="cpu", scale=1.0):
    return (scale * torch.randn(*shape, device=device)).to(dtype)


def norm_pair(rows, width, dtype, device="cpu", pad=0):
    """(kernel results, reference results) of both norms; `pad` values lie between two rows."""
    x, residual = (
        random(rows, width + pad, dtype=dtype, device=device, scale=scale)[:, :width] for scale in (3.0, 30.0)
    )
    weight = random(width, dtype=dtype, device=device)
    found = (norm.rms_norm_kernel(x, weight, EPS), *norm.residual_rms_norm_kernel(x, residual, weight, EPS))
    return found, (norm.rms_norm(x, weight, EPS), *norm.residual_rms_norm(x, residual, weight, EPS))


def swiglu_pair(rows, width, dtype, device="cpu", pad=0):
    gate_up = random(rows, 2 * width + pad, dtype=dtype, device=device, scale=4.0)[:, : 2 * width]
    return (gated.swiglu_kernel(gate_up),), (gated.swiglu(gate_up),)


def rope_pair(tokens, heads, kv_heads, size, dtype, device="cpu", normed=False, batches=1):
    """q and k are views of the merged product, as the decoder has them; equal positions in every batch."""
    merged = random(batches * tokens, heads + 2 * kv_heads, size, dtype=dtype, device=device)
    q, k, _ = merged.split((heads, kv_heads, kv_heads), dim=1)
    frequencies = 1.0 / 10_000 ** (torch.arange(size // 2, device=device) / (size // 2))
    cos, sin = rotary.rotary_table(torch.arange(tokens, device=device) * 7, frequencies, 1.1, dtype)
    weights = [random(size, dtype=dtype, device=device) for _ in range(2)] if normed else [None, None]
    return (operation(q, k, cos, sin, *weights, EPS) for operation in (rotary.norm_rope_kernel, rotary.norm_rope))
