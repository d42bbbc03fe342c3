"""Scenarios of the fused kernels alone."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from jevify.evidence.fields import (
    check_keys,
    check_numbers,
    require_flag,
    require_positive,
    require_table,
    whole_numbers,
)
from jevify.evidence.kinds.base import Scenario, check_common

_SIZE = (1, 1_048_576)


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder whose rows the kernels take; head_norms: queries and keys are normalized, as in Qwen3."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    head_norms: bool = False


@dataclass(frozen=True, kw_only=True)
class KernelsScenario(Scenario):
    """Kernels on `shape` at each number of `rows`; `repeats` counts replays of the graph that is timed.

    Past `seconds`, what has not been measured is skipped and told so; compiling comes last.
    """

    shape: Shape
    rows: tuple[int, ...]
    seconds: float = 600.0


def parse(data: Mapping[str, Any], where: str) -> KernelsScenario:
    """A scenario from plain data, under the path `where`. Raises InputError, naming the field."""
    values = check_common(KernelsScenario, data, where)
    values["rows"] = whole_numbers(values["rows"], _SIZE, f"{where}.rows")
    values["shape"] = _shape(values["shape"], f"{where}.shape")
    if "seconds" in values:
        require_positive(values["seconds"], f"{where}.seconds")
    return KernelsScenario(**values)


def _shape(data: Any, where: str) -> Shape:
    require_table(data, where)
    check_keys(Shape, data, where)
    check_numbers(data, {entry.name: _SIZE for entry in fields(Shape) if entry.name != "head_norms"}, where)
    require_flag(data.get("head_norms", False), f"{where}.head_norms")
    return Shape(**data)
