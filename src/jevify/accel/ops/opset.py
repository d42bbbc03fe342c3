"""Which implementation of each operation one engine uses. Nothing here is global: two engines may differ."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from jevify.accel.ops import KERNELS
from jevify.accel.ops import rms_norm as norm
from jevify.accel.ops import rope as rotary
from jevify.accel.ops import swiglu as gated
from jevify.accel.ops.linear import LinearTile, linear
from jevify.accel.ops.linear_choice import Product, Table, choices, chosen_linear
from jevify.accel.ops.rows import DTYPES
from jevify.accel.ops.triton_runtime import failure
from jevify.errors import SettingError


@dataclass(frozen=True)
class OpSet:
    """The operations of a decoder that have more than one implementation; by default their references.

    Each slot has the contract of the reference it defaults to. kernels: the names that were asked for, in the order of
    KERNELS. launches: how often each of them was launched from Python, mutated by every call; the replay of a captured
    graph launches without Python and is counted by its own counter.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = norm.rms_norm
    residual_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = norm.residual_rms_norm
    silu_mul: Callable[[Tensor, Tensor], Tensor] = gated.silu_mul
    norm_rope: Callable[..., tuple[Tensor, Tensor]] = rotary.norm_rope
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = linear
    kernels: tuple[str, ...] = ()
    launches: dict[str, int] = field(default_factory=dict)


def fused_ops(
    kernels: Collection[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    widths: Iterable[int],
    head_size: int,
    products: Collection[Product] = (),
    table: Table | None = None,
) -> OpSet:
    """An OpSet with the named kernels in their slots and the references everywhere else.

    widths: the row widths that norms will see. products: the (outputs, inner) sizes that "linear" will see; table: how
    they were measured, by default what is shipped. Where only "rmsnorm" is asked for it also serves the norms inside
    residual_rms_norm and norm_rope. Runs a small kernel once a process to find out whether any can run. Raises
    SettingError naming the kernel and the reason when one cannot.
    """
    for name in kernels:
        if name not in KERNELS:
            raise SettingError(f"fused kernel {name!r} is not known; the kernels are {', '.join(KERNELS)}")
        if reason := _refusal(name, device, dtype, widths, head_size):
            raise SettingError(f"fused kernel {name}: {reason}")
    launches = {name: 0 for name in KERNELS if name in kernels}

    def counted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            result = kernel(*arguments)
            # No rows, no launch.
            launches[name] += arguments[0].numel() > 0
            return result

        return run

    slots: dict[str, Callable[..., Any]] = {}
    if "linear" in kernels:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        measured = choices(products, device=name, dtype=dtype, table=table)
        if not measured:
            raise SettingError(
                f"fused kernel linear: no product of this model was measured on {name} in "
                f"{str(dtype).removeprefix('torch.')}; measure them with scripts/tune_linear.py"
            )
        if not any(isinstance(way, LinearTile) for ways in measured.values() for _, way in ways):
            raise SettingError(f"fused kernel linear: the library's own products were the fastest measured on {name}")

        def launched() -> None:
            launches["linear"] += 1

        slots["linear"] = chosen_linear(measured, launched)
    if "rmsnorm" in kernels:
        normalize = slots["rms_norm"] = counted("rmsnorm", norm.rms_norm_kernel)
        slots["residual_rms_norm"] = _sum_then(normalize)
        slots["norm_rope"] = _norms_then_rope(normalize)
    if "swiglu" in kernels:
        slots["silu_mul"] = counted("swiglu", gated.silu_mul_kernel)
    if "rope" in kernels:
        slots["norm_rope"] = counted("rope", rotary.norm_rope_kernel)
    if "residual_norm" in kernels:
        slots["residual_rms_norm"] = counted("residual_norm", norm.residual_rms_norm_kernel)
    return OpSet(**slots, kernels=tuple(launches), launches=launches)


def _refusal(name: str, device: torch.device, dtype: torch.dtype, widths: Iterable[int], head_size: int) -> str | None:
    if dtype not in DTYPES:
        return f"{dtype} is not supported; use float16, bfloat16 or float32"
    if name == "rope" and (reason := rotary.refusal(head_size)):
        return reason
    if name in ("rmsnorm", "residual_norm") and (width := max(widths)) > norm.MAX_WIDTH:
        return f"rows of {width} values are wider than {norm.MAX_WIDTH}"
    return failure(str(device))


def _sum_then(normalize: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        return normalize(total, weight, eps), total

    return run


def _norms_then_rope(normalize: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
        eps: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        if q_weight is not None and k_weight is not None:
            q, k = normalize(q, q_weight, eps), normalize(k, k_weight, eps)
        return rotary.norm_rope(q, k, cos, sin)

    return run
