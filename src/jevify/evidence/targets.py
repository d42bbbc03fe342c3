"""What a case must reach, beside what was measured."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jevify.evidence.fields import check_keys, require_positive, require_table

_DECIMALS = 4


@dataclass(frozen=True)
class Targets:
    """Greatest values, but the least for `ratio`; None where nothing is asked.

    decide_ms: median of the whole decision. gpu_ms: median of its `device` stage, the GPU time of the pass. ratio:
    median speed-up over the baseline. gpu_times_floor: the `device` stage over the physical floor of the case.
    host_ms: the whole decision less its `device` and `prepare` stages.
    """

    decide_ms: float | None = None
    gpu_ms: float | None = None
    ratio: float | None = None
    gpu_times_floor: float | None = None
    host_ms: float | None = None


def parse_targets(data: Any, where: str) -> Targets:
    """Targets from plain data. Raises InputError, naming the field."""
    require_table(data, where)
    check_keys(Targets, data, where)
    for name, value in data.items():
        require_positive(value, f"{where}.{name}")
    return Targets(**data)


def judged(targets: Targets, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`held` for each target and the figure of an arm's stored row."""
    return [
        held(name, target, _figure(name, row), least=name == "ratio")
        for name, target in asdict(targets).items()
        if target is not None
    ]


def held(figure: str, target: float, measured: float | None, *, least: bool) -> dict[str, Any]:
    """A target, the least or the greatest value asked of a figure, beside what was measured: None where it was not.

    `met` is None without a figure; `short_by` says by how much a figure is on the wrong side, 0 when it is met.
    """
    short = None
    if measured is not None:
        short = max(0.0, target - measured if least else measured - target)
    return {
        "figure": figure,
        "target": target,
        "measured": None if measured is None else round(measured, _DECIMALS),
        "met": None if short is None else short == 0,
        "short_by": None if short is None else round(short, _DECIMALS),
    }


def _figure(name: str, row: Mapping[str, Any]) -> float | None:
    if "error" in row:
        return None
    stages = row["stages_median_ms"]
    device, prepare = stages.get("device"), stages.get("prepare")
    figures: dict[str, float | None] = {
        "decide_ms": row["median_ms"],
        "gpu_ms": device,
        "ratio": row["ratio"]["median"] if row["ratio"] else None,
        "gpu_times_floor": row.get("gpu_times_floor"),
        "host_ms": None if device is None or prepare is None else row["median_ms"] - device - prepare,
    }
    return figures[name]
