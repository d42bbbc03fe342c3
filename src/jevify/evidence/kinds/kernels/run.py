"""Runs a kernels scenario: each kernel, its reference, the reference compiled, and liger-kernel's."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from jevify.evidence.floor import machine_of
from jevify.evidence.gpu_time import cold_milliseconds, sets_beyond_cache
from jevify.evidence.kernel_rivals import NotHere, compiled, liger
from jevify.evidence.kernels import DenseShape, Exactness, KernelCase, Operation, exactness, kernel_cases
from jevify.evidence.kinds.base import Bench
from jevify.evidence.kinds.kernels.scenario import KernelsScenario

# In the order of measuring: compiling takes seconds, so it comes last.
IMPLEMENTATIONS = ("kernel", "eager", "liger", "compile")
_MOST_SETS = 160
_DECIMALS = 4


def run(scenario: KernelsScenario, bench: Bench, keep: Callable[[dict[str, Any]], None]) -> None:
    """Give `keep` a case for each number of rows, also after an interrupt; a failure leaves the others as they are."""
    device = torch.device("cuda" if scenario.device == "auto" else scenario.device)
    dtype = torch.bfloat16 if scenario.dtype == "auto" else getattr(torch, scenario.dtype)
    deadline = bench.clock() + scenario.seconds
    shape = DenseShape(**asdict(scenario.shape))
    cases: dict[int, dict[str, Any]] = {rows: {} for rows in scenario.rows}
    work = [(implementation, rows) for implementation in IMPLEMENTATIONS for rows in scenario.rows]
    try:
        for done, (implementation, rows) in enumerate(work):
            bench.progress(done, len(work), f"{implementation}, {rows} rows")
            for case in kernel_cases(shape, rows, dtype=dtype, device=device, seed=scenario.seed):
                row: dict[str, Any] = {"name": f"{case.name}, {implementation}"}
                cases[rows][row["name"]] = row
                if bench.clock() > deadline:
                    row["skipped"] = f"the limit of {scenario.seconds:g} s was reached"
                    continue
                row |= _measured(implementation, case, device, scenario.repeats)
    except KeyboardInterrupt:
        bench.interrupted = True
    for rows, found in cases.items():
        arms = sorted(found.values(), key=lambda row: [*_order(row["name"])])
        ran = {"device": str(device), "dtype": str(dtype).removeprefix("torch.")}
        keep({"case": {"name": f"{rows} rows", "rows": rows}, "arms": [{**row, "ran": ran} for row in arms]})


def _order(name: str) -> tuple[str, int]:
    kernel, implementation = name.split(", ")
    return kernel, IMPLEMENTATIONS.index(implementation)


def _measured(implementation: str, case: KernelCase, device: torch.device, replays: int) -> dict[str, Any]:
    try:
        operation, prepare = _operation(implementation, case)
        wanted = case.reference(*case.inputs)
        with torch.no_grad():
            distance = _distance(operation(*prepare(case.copied_inputs())), wanted)
        sets = [prepare(case.copied_inputs()) for _ in range(sets_beyond_cache(case.bytes_moved, most=_MOST_SETS))]
        took = cold_milliseconds(operation, sets, replays=replays)
        machine = machine_of(str(device))
        rate = case.bytes_moved / took * 1e3
        return {
            "microseconds": round(took * 1e3, _DECIMALS),
            "gb_per_second": round(rate / 1e9, 1),
            "bandwidth_share": None if machine is None else round(rate / machine.bandwidth, _DECIMALS),
            "mismatch": round(distance.mismatch, 8),
            "ulp": distance.ulp,
            "sets": len(sets),
        }
    except NotHere as error:
        return {"skipped": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _operation(
    implementation: str, case: KernelCase
) -> tuple[Operation, Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
    if implementation == "liger":
        rival = liger(case)
        return rival.run, rival.prepare
    operation = {"kernel": case.kernel, "eager": case.reference, "compile": None}[implementation]
    return operation or compiled(case), lambda inputs: inputs


def _distance(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> Exactness:
    """The mismatch over all outputs together, and the largest distance in any."""
    parts = [exactness(ours, theirs) for ours, theirs in zip(found, wanted, strict=True)]
    values = [tensor.numel() for tensor in wanted]
    differing = sum(part.mismatch * count for part, count in zip(parts, values, strict=True))
    return Exactness(differing / sum(values), max(part.ulp for part in parts))
