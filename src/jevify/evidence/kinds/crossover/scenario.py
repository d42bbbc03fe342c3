"""Scenarios of the crossover map."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jevify.errors import InputError
from jevify.evidence.fields import Bound, check_numbers, require_positive, whole_numbers
from jevify.evidence.kinds.base import Scenario, check_common

_SIZE: Bound = (1, 1_048_576)


@dataclass(frozen=True, kw_only=True)
class CrossoverScenario(Scenario):
    """A grid of prefix lengths, numbers of branches and branch lengths; heads: query heads, key heads, head size.

    `repeats` counts replays of each timed graph. Points of more than `most_rows` tokens are left out, and repeating
    keys and values where that takes more than `most_mib`. Past `seconds` the rest of the grid, whose order is random,
    is left out and told so.
    """

    heads: tuple[int, ...]
    prefix: tuple[int, ...]
    branches: tuple[int, ...]
    rows: tuple[int, ...]
    most_rows: int = 20_000
    most_mib: int = 2_048
    seconds: float = 600.0


def parse(data: Mapping[str, Any], where: str) -> CrossoverScenario:
    """A scenario from plain data, under the path `where`. Raises InputError, naming the field."""
    values = check_common(CrossoverScenario, data, where)
    check_numbers(data, {"most_rows": _SIZE, "most_mib": _SIZE}, where)
    for name in ("heads", "prefix", "branches", "rows"):
        values[name] = whole_numbers(values[name], _SIZE, f"{where}.{name}")
    if len(values["heads"]) != 3 or values["heads"][0] % values["heads"][1]:
        raise InputError(f"{where}.heads: give query heads, key heads that divide them, and the head size")
    if "seconds" in values:
        require_positive(values["seconds"], f"{where}.seconds")
    return CrossoverScenario(**values)
