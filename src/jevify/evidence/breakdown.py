"""Where the device time of a decision goes: its kernels by name and by the part of the model they are."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jevify.evidence.expected import RequestSize
from jevify.evidence.floor import Machine, attention_operations, layer_parameters

GROUPS = ("products", "attention", "norms", "rope", "swiglu", "head", "copies", "other")
# The first that a kernel's name matches. Reduced products of fp32 belong to the head: layers run in the model's dtype.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("head", r"sgemm|tf32|f32f32|logsumexp|LogSumExp"),
    ("norms", r"rms_norm|rmsnorm|layer_norm"),
    ("rope", r"rope|_turn\b|rotary"),
    ("swiglu", r"silu|swiglu"),
    ("attention", r"_attend|flash|fmha|attention|softmax|^_merge$"),
    ("products", r"gemm|nvjet|cutlass|splitK|split_k|gemv|matmul|product|skinny|linear|\b(add|baddb|b)?mm$"),
    ("copies", r"[Mm]emcpy|[Mm]emset|copy|Copy|CatArray|::cat$|index|gather|Index|fill|Fill"),
)
_DECIMALS = 3
# Template names run to hundreds of characters.
_NAME = 120


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel, a copy or a fill on the GPU; on the CPU, of an operator, without those it calls."""

    name: str
    microseconds: float


def group_of(name: str) -> str:
    """The part of the model that a kernel of this name is, as far as its name tells."""
    return next((group for group, pattern in _PATTERNS if re.search(pattern, name)), "other")


def profiled(run: Callable[[], object], device: str = "cuda", trace: Path | None = None) -> list[Kernel]:
    """What ran on `device` during `run`, in the order of its start; the kernels inside a replayed graph one by one.

    Profiles nothing for a moment first, so that the tracer is up. trace: a file for the chrome trace of the run.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]

    def traced(call: Callable[[], object]) -> Any:
        with profile(activities=activities) as found:
            call()
            if cuda:
                torch.cuda.synchronize()
        return found

    traced(lambda: torch.zeros(1, device=device))
    found = traced(run)
    if trace is not None:
        found.export_chrome_trace(str(trace))
    kind = "CUDA" if cuda else "CPU"
    events = [
        event
        for event in found.events()
        if event.device_type.name == kind and not getattr(event, "is_user_annotation", False)
    ]
    events.sort(key=lambda event: event.time_range.start)
    if cuda:
        return [Kernel(event.name, float(event.time_range.elapsed_us())) for event in events]
    return [Kernel(event.name, float(event.self_cpu_time_total)) for event in events if event.self_cpu_time_total > 0]


def breakdown(kernels: Sequence[Kernel], runs: int, floors: Mapping[str, float]) -> dict[str, Any]:
    """Totals of one of `runs` equal decisions: by group beside its floor in microseconds, and by kernel.

    Both are in descending order of time; `share` is of the busy time.
    """
    busy = sum(kernel.microseconds for kernel in kernels)
    names: dict[str, list[float]] = {}
    for kernel in kernels:
        names.setdefault(kernel.name, []).append(kernel.microseconds)
    groups: dict[str, list[float]] = {}
    for kernel in kernels:
        groups.setdefault(group_of(kernel.name), []).append(kernel.microseconds)

    def line(times: Sequence[float]) -> dict[str, Any]:
        return {
            "calls": round(len(times) / runs, _DECIMALS),
            "microseconds": round(sum(times) / runs, _DECIMALS),
            "share": round(sum(times) / busy, 4),
        }

    def longest(found: Mapping[str, Sequence[float]]) -> list[tuple[str, Sequence[float]]]:
        return sorted(found.items(), key=lambda entry: -sum(entry[1]))

    return {
        "busy_us": round(busy / runs, _DECIMALS),
        "groups": [
            {
                "group": group,
                **line(times),
                "floor_us": None if group not in floors else round(floors[group], _DECIMALS),
            }
            for group, times in longest(groups)
        ],
        "kernels": [{"kernel": name[:_NAME], "group": group_of(name), **line(times)} for name, times in longest(names)],
    }


def group_floors(config: Any, size: RequestSize, machine: Machine | None) -> dict[str, float]:
    """Least microseconds of the groups that physics bounds; nothing for an unmeasured machine.

    Products are bound by weights and arithmetic, attention by arithmetic.
    """
    if machine is None:
        return {}
    parameters = layer_parameters(config)
    arithmetic = 2 * parameters * size.packed_tokens / machine.rate
    return {
        "products": max(2 * parameters / machine.bandwidth, arithmetic) * 1e6,
        "attention": attention_operations(config, size.visible_keys) / machine.rate * 1e6,
    }
