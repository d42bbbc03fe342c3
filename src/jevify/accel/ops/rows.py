"""What launchers assume of their tensors, checked in one place, and the launch itself."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The largest number of programs along x, the only grid axis that is used.
MAX_PROGRAMS = 2**31 - 1
# A fused multiply-add would skip a rounding that the references make.
EXACT_ROUNDING = {"enable_fp_fusion": False}


def check(name: str, *tensors: Tensor) -> None:
    """Raise ValueError unless all have one supported dtype, one device, unit stride in the last dimension, no grad."""
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype not in DTYPES or tensor.dtype != first.dtype:
            found = ", ".join(str(other.dtype) for other in tensors)
            raise ValueError(f"{name}: dtypes are {found}; all must be one of float16, bfloat16, float32")
        if tensor.device != first.device:
            raise ValueError(f"{name}: tensors are on {first.device} and {tensor.device}")
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name}: the last dimension has stride {tensor.stride(-1)}; the kernel reads stride 1")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name}: the kernel has no backward; call it under torch.inference_mode or no_grad")


def row_layout(name: str, x: Tensor) -> tuple[int, int, int, int]:
    """Rows of x [..., H] as two nested loops: (rows, inner rows, outer stride, inner stride) in elements.

    Row r starts at r // inner * outer stride + r % inner * inner stride. Raises ValueError when the leading dimensions
    need more than two loops.
    """
    rows = x.shape[:-1].numel()
    if x.is_contiguous():
        return rows, 1, x.shape[-1], 0
    loops: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if loops and loops[-1][1] == size * stride:
            loops[-1] = (loops[-1][0] * size, stride)
        else:
            loops.append((size, stride))
    if len(loops) > 2:
        raise ValueError(
            f"{name}: the rows of a tensor of shape {tuple(x.shape)} and strides {x.stride()} lie in more than two "
            "nested loops; make it contiguous"
        )
    if len(loops) == 2:
        return rows, loops[1][0], loops[0][1], loops[1][1]
    return rows, 1, loops[0][1] if loops else 0, 0


def warps(elements: int) -> int:
    """Warps for a program over `elements` (a power of two): eight to a thread, as one 16-byte load of 16-bit values."""
    return max(1, min(16, elements // 256))


def launch(kernel: Any, programs: int, device: torch.device, arguments: Sequence[Any], **options: Any) -> None:
    """Run `programs` programs of `kernel` on `device`, also when another device is the current one."""
    if programs > MAX_PROGRAMS:
        raise ValueError(f"{programs} programs are more than one launch takes ({MAX_PROGRAMS}); split the rows")
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(programs,)](*arguments, **options, **EXACT_ROUNDING)
    else:
        kernel[(programs,)](*arguments, **options, **EXACT_ROUNDING)
