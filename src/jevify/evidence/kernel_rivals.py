"""What else runs the operations of the fused kernels: torch.compile of the reference, and liger-kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from jevify.errors import JevifyError
from jevify.evidence.kernels import KernelCase, Operation

_EPS = 1e-6


class NotHere(JevifyError):
    """An implementation that is not installed or has no such operation."""


def compiled(case: KernelCase) -> Operation:
    """The reference under torch.compile for fixed shapes; it compiles at its first call."""
    operation: Operation = torch.compile(case.reference, dynamic=False, fullgraph=True)
    return operation


@dataclass(frozen=True)
class Liger:
    """An operation of liger-kernel, and `prepare`, which turns the inputs of the case into those it takes.

    It may overwrite what `prepare` returns.
    """

    run: Operation
    prepare: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


def liger(case: KernelCase) -> Liger:
    """liger-kernel's way to run the case. Raises NotHere."""
    try:
        return _LIGER[case.name](case)
    except ImportError as error:
        raise NotHere(f"not installed ({error})") from error


def _function(module: str, name: str) -> Any:
    return getattr(import_module(f"liger_kernel.ops.{module}"), name)


def _rms_norm(case: KernelCase) -> Liger:
    function = _function("rms_norm", "LigerRMSNormFunction")
    return Liger(lambda x, weight: (function.apply(x, weight, _EPS, 0.0, "llama", False),), lambda inputs: inputs)


def _residual_norm(case: KernelCase) -> Liger:
    function = _function("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")
    return Liger(
        lambda x, residual, weight: function.apply(x, residual, weight, _EPS, 0.0, "llama", False),
        lambda inputs: inputs,
    )


def _swiglu(case: KernelCase) -> Liger:
    function = _function("swiglu", "LigerSiLUMulFunction")
    # It would copy the halves of a merged product in every call: here they come as its own models have them.
    return Liger(
        lambda gate, up: (function.apply(gate, up),),
        lambda inputs: tuple(half.contiguous() for half in inputs[0].chunk(2, dim=-1)),
    )


def _rope(case: KernelCase) -> Liger:
    if len(case.inputs) > 4:
        raise NotHere("liger-kernel's rope normalizes no heads")
    function = _function("rope", "LigerRopeFunction")

    def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        turned = function.apply(q, k, cos, sin)
        return tuple(x[0].transpose(0, 1) for x in turned)

    def prepare(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        q, k, cos, sin = inputs
        # [1, heads, rows, D] as transposed views, as its own models call it.
        return (
            *(x.clone(memory_format=torch.contiguous_format).transpose(0, 1)[None] for x in (q, k)),
            cos[None],
            sin[None],
        )

    return Liger(run, prepare)


_LIGER = {"rmsnorm": _rms_norm, "residual_norm": _residual_norm, "swiglu": _swiglu, "rope": _rope}
