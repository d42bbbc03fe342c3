"""Every fused kernel beside its reference by ulp, references beside fp64, on odd shapes, strides and dtypes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from jevify.accel.ops import linear as product
from jevify.accel.ops import rms_norm as norm
from jevify.accel.ops import rope as rotary
from jevify.accel.ops import swiglu as gated
from jevify.accel.ops.rows import launch
from jevify.evidence.kernels import exactness
from jevify.evidence.validate.cases import DEVICE
from jevify.evidence.validate.check import Check

EPS = 1e-6
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Rows and width, and values that lie between two rows.
SIZES = ((1, 5, 0), (5, 123, 3), (7, 1, 3), (33, 48, 0), (130, 40, 3))

Results = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
Pairs = Callable[[torch.dtype], Iterator[Results]]


def _random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (scale * torch.randn(*shape, generator=generator)).to(dtype).to(DEVICE)


def norms(dtype: torch.dtype) -> Iterator[Results]:
    """Both norms, on rows that lie apart; a residual with strides of its own; rows in two nested loops."""
    for rows, width, pad in SIZES:
        x = _random(rows, width + pad, dtype=dtype, scale=3.0)[:, :width]
        residual = _random(rows, width + 2 * pad, dtype=dtype, scale=30.0)[:, :width]
        yield _norms(x, residual, _random(width, dtype=dtype))
    nested = _random(4, 5, 16, dtype=dtype)[:, 1:3, :9]
    yield _norms(nested, _random(4, 2, 9, dtype=dtype), _random(9, dtype=dtype))


def _norms(x: Tensor, residual: Tensor, weight: Tensor) -> Results:
    return (
        (norm.rms_norm_kernel(x, weight, EPS), *norm.residual_rms_norm_kernel(x, residual, weight, EPS)),
        (norm.rms_norm(x, weight, EPS), *norm.residual_rms_norm(x, residual, weight, EPS)),
    )


def swiglu(dtype: torch.dtype) -> Iterator[Results]:
    """Gate and up as halves of one product."""
    for rows, width, pad in (*SIZES, (3, 1_025, 3)):
        merged = _random(rows, 2 * width + pad, dtype=dtype, scale=4.0)[:, : 2 * width]
        yield (gated.swiglu_kernel(merged),), (gated.swiglu(merged),)


def rope(dtype: torch.dtype) -> Iterator[Results]:
    """Queries and keys as views of the merged product, one key head among the sizes; positions shared by batches."""
    for heads, kv_heads, size, tokens, batches in ((6, 1, 22, 5, 1), (5, 5, 8, 3, 4), (12, 2, 128, 2, 1)):
        yield _rope(heads, kv_heads, size, tokens, batches, dtype, normed=False)


def _rope(
    heads: int, kv_heads: int, size: int, tokens: int, batches: int, dtype: torch.dtype, *, normed: bool
) -> Results:
    merged = _random(batches * tokens, heads + 2 * kv_heads, size, dtype=dtype)
    q, k, _ = merged.split((heads, kv_heads, kv_heads), dim=1)
    frequencies = 1.0 / 10_000 ** (torch.arange(size // 2, device=DEVICE) / (size // 2))
    cos, sin = rotary.rotary_table(torch.arange(tokens, device=DEVICE) * 7, frequencies, 1.1, dtype)
    q_weight, k_weight = (_random(size + index, dtype=dtype)[:size] if normed else None for index in range(2))
    return (
        rotary.norm_rope_kernel(q, k, cos, sin, q_weight, k_weight, EPS),
        rotary.norm_rope(q, k, cos, sin, q_weight, k_weight, EPS),
    )


def linear(dtype: torch.dtype) -> Iterator[Results]:
    """Products of few rows, whole and split, with and without a bias."""
    for rows, inner, outputs, split in ((3, 40, 33, 1), (18, 200, 20, 2)):
        x = _random(rows, inner + 8, dtype=dtype)[:, :inner]
        weight, bias = _random(outputs, inner, dtype=dtype), _random(outputs, dtype=dtype)
        tile = product.LinearTile(16, 16, 32, split, 4, 1)
        for added in (None, bias):
            yield (product.linear_kernel(x, weight, added, tile),), (product.linear(x, weight, added),)


def ulp(pairs: Pairs, dtype: torch.dtype) -> float:
    """Largest number of representable values between a kernel's value and its reference's."""
    return max(
        exactness(ours, theirs).ulp
        for found, wanted in pairs(dtype)
        for ours, theirs in zip(found, wanted, strict=True)
    )


def mismatch(pairs: Pairs, dtype: torch.dtype) -> float:
    """Share of values that differ at all: a last fp32 bit tips few over a rounding boundary, a wrong rounding many."""
    differ = total = 0.0
    for found, wanted in pairs(dtype):
        for ours, theirs in zip(found, wanted, strict=True):
            differ += exactness(ours, theirs).mismatch * ours.numel()
            total += ours.numel()
    return differ / total


def roundings(pairs: Pairs, dtype: torch.dtype) -> float:
    """Largest distance in roundings of the largest value: where terms may cancel, ulp say nothing."""
    return max(
        ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item() / torch.finfo(dtype).eps
        for found, wanted in pairs(dtype)
        for ours, theirs in zip(found, wanted, strict=True)
    )


def head_norms(dtype: torch.dtype) -> Iterator[Results]:
    """Rotation of heads that are normalized first."""
    yield _rope(6, 1, 22, 5, 1, dtype, normed=True)
    yield _rope(16, 8, 128, 3, 1, dtype, normed=True)


def references(dtype: torch.dtype) -> float:
    """Values of the references that are not their formula's, worked out in fp64 with the roundings of transformers."""
    x, residual = _random(9, 40, dtype=dtype, scale=3.0), _random(9, 41, dtype=dtype, scale=30.0)[:, :40]
    weight = _random(40, dtype=dtype)
    total = (x.double() + residual.double()).to(dtype)
    wrong = 0
    for ours, theirs, step in (
        (norm.rms_norm(x, weight, EPS), _rms_norm(x, weight), 1),
        (norm.residual_rms_norm(x, residual, weight, EPS)[1], total, 0),
        (norm.residual_rms_norm(x, residual, weight, EPS)[0], _rms_norm(total, weight), 1),
    ):
        found = exactness(ours, theirs)
        wrong += found.ulp > (4 if dtype is torch.float32 else step) or (
            dtype is not torch.float32 and found.mismatch > 0.01
        )
    return wrong


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    normalized = (wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt()).to(x.dtype)
    return (normalized.double() * weight.double()).to(x.dtype)


def empty() -> float:
    """Launches over an empty grid, and results of no rows that are not empty."""
    programs: list[int] = []

    def spy(kernel: Any, count: int, *rest: Any, **options: Any) -> None:
        programs.append(count)
        if count:
            launch(kernel, count, *rest, **options)

    x, weight = torch.empty(0, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    with patch.object(norm, "launch", spy), patch.object(gated, "launch", spy), patch.object(rotary, "launch", spy), \
            patch.object(product, "launch", spy):  # fmt: skip
        results = [
            norm.rms_norm_kernel(x, weight, EPS),
            *norm.residual_rms_norm_kernel(x, x, weight, EPS),
            gated.silu_mul_kernel(x, x),
            *rotary.norm_rope_kernel(x[:, None], x[:, None], x, x),
            product.linear_kernel(x, torch.ones(3, 8, device=DEVICE), None, product.LinearTile(16, 16, 16, 1, 4, 1)),
        ]
    return len(programs) + sum(result.shape[0] != 0 for result in results)


def _ulp_checks(name: str, pairs: Pairs) -> Iterator[Check]:
    for dtype_name, dtype in DTYPES.items():
        gate = "ulp_float32" if dtype is torch.float32 else "ulp_low_precision"
        yield Check(f"kernels.{name}.{dtype_name}", gate, partial(ulp, pairs, dtype))
        if dtype is not torch.float32:
            yield Check(f"kernels.{name}.{dtype_name}-share", "low_precision_mismatch", partial(mismatch, pairs, dtype))


CHECKS = (
    *_ulp_checks("norms", norms),
    *_ulp_checks("swiglu", swiglu),
    *_ulp_checks("rope", rope),
    *(
        Check(f"kernels.rope-head-norms.{name}", "roundings", partial(roundings, head_norms, dtype))
        for name, dtype in DTYPES.items()
    ),
    *(
        Check(f"kernels.linear.{name}", "roundings", partial(roundings, linear, dtype))
        for name, dtype in DTYPES.items()
    ),
    *(Check(f"references.norms.{name}", "violations", partial(references, dtype)) for name, dtype in DTYPES.items()),
    Check("kernels.no-rows", "violations", empty),
)
