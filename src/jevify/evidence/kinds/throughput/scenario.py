"""Scenarios of many requests in one call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jevify.errors import InputError
from jevify.evidence.fields import check_keys, check_numbers, require_positive, require_table, require_text, tables
from jevify.evidence.kinds.base import (
    Arm,
    Case,
    ModelScenario,
    check_common,
    parse_arms,
    parse_case,
    require_different,
)


@dataclass(frozen=True)
class Reference:
    """A figure measured elsewhere on the same workload, told beside ours, and where it comes from."""

    name: str
    requests_per_second: float
    source: str


@dataclass(frozen=True, kw_only=True)
class ThroughputScenario(ModelScenario):
    """`requests` of one size in one `decide_many`, with contexts of their own in each round.

    A round runs every arm on the same requests; `warmup` rounds go before the `repeats` timed ones. `target` is the
    least number of requests a second of `target_arm`, the last candidate where it is empty.
    """

    requests: int
    case: Case
    candidates: tuple[Arm, ...]
    references: tuple[Reference, ...] = ()
    target: float | None = None
    target_arm: str = ""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The order of a round."""
        return self.candidates

    @property
    def most_questions(self) -> int:
        """Questions of a request."""
        return self.case.questions


def parse(data: Mapping[str, Any], where: str) -> ThroughputScenario:
    """A scenario from plain data, under the path `where`. Raises InputError, naming the field."""
    values = check_common(ThroughputScenario, data, where)
    check_numbers(data, {"requests": (1, 100_000)}, where)
    values["case"] = parse_case(values["case"], f"{where}.case")
    values["candidates"] = parse_arms(values["candidates"], f"{where}.candidates")
    names = [arm.name for arm in values["candidates"]]
    require_different(names, [f"{where}.candidates[{index}]" for index in range(len(names))])
    if "references" in values:
        entries = tables(values["references"], f"{where}.references")
        values["references"] = tuple(_reference(entry, path) for path, entry in entries)
    if "target" in values:
        require_positive(values["target"], f"{where}.target")
    require_text(values.get("target_arm", ""), f"{where}.target_arm", empty=True)
    if values.get("target_arm") and values["target_arm"] not in names:
        raise InputError(f"{where}.target_arm: {values['target_arm']!r} is no arm; the arms are {', '.join(names)}")
    return ThroughputScenario(**values)


def _reference(data: Any, where: str) -> Reference:
    require_table(data, where)
    check_keys(Reference, data, where)
    for name in ("name", "source"):
        require_text(data[name], f"{where}.{name}")
    require_positive(data["requests_per_second"], f"{where}.requests_per_second")
    return Reference(**data)
