"""Runs a crossover scenario: every point of the grid in each way."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from jevify.evidence.crossover import Heads, Size, Way, repeat_bytes, ways
from jevify.evidence.gpu_time import cold_milliseconds, sets_beyond_cache
from jevify.evidence.kinds.base import Bench
from jevify.evidence.kinds.crossover.scenario import CrossoverScenario

# Beyond this many the time of a point does not change and its planning takes longer than its measuring.
_MOST_SETS = 8
_DECIMALS = 3


def run(scenario: CrossoverScenario, bench: Bench, keep: Callable[[dict[str, Any]], None]) -> None:
    """Give `keep` the one case, also after an interrupt; a failing way of a point leaves the others as they are."""
    device = torch.device("cuda" if scenario.device == "auto" else scenario.device)
    dtype = torch.bfloat16 if scenario.dtype == "auto" else getattr(torch, scenario.dtype)
    grid = [Size(*point) for point in product(scenario.prefix, scenario.branches, scenario.rows)]
    grid = [size for size in grid if size.total <= scenario.most_rows]
    order = random.Random(scenario.seed).sample(grid, len(grid))
    deadline = bench.clock() + scenario.seconds
    found: dict[Size, dict[str, Any]] = {}
    try:
        for done, size in enumerate(order):
            bench.progress(done, len(order), _name(size))
            if bench.clock() > deadline:
                break
            found[size] = _measured(scenario, size, device, dtype)
    except KeyboardInterrupt:
        bench.interrupted = True
    ran = {"device": str(device), "dtype": str(dtype).removeprefix("torch.")}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    keep(
        {
            "case": {"name": "shared attention", "device": name, "points": len(grid), "measured": len(found)},
            "arms": [{"name": _name(size), "ran": ran, **found[size]} for size in grid if size in found],
        }
    )


def _name(size: Size) -> str:
    return f"P={size.prefix} N={size.branches} Q={size.rows}"


def _measured(scenario: CrossoverScenario, size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    heads = Heads(*scenario.heads)
    row: dict[str, Any] = {"prefix": size.prefix, "branches": size.branches, "rows": size.rows}
    errors = []
    try:
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
        found = ways(size, heads, dtype=dtype, device=device, processors=processors)
    except Exception as error:
        return {**row, "error": f"{type(error).__name__}: {error}"[:300]}
    if repeat_bytes(size, heads, dtype) > scenario.most_mib * 2**20:
        del found["repeat"]
    for name, way in found.items():
        try:
            row[f"{name}_us"] = round(_milliseconds(way, scenario.repeats) * 1e3, _DECIMALS)
        except Exception as error:
            errors.append(f"{name}: {type(error).__name__}: {error}"[:300])
    return {**row, "error": "; ".join(errors)} if errors else row


def _milliseconds(way: Way, replays: int) -> float:
    sets = [way.inputs() for _ in range(sets_beyond_cache(way.bytes_moved, most=_MOST_SETS))]
    return cold_milliseconds(way.run, sets, replays=replays)
