"""Scenarios of profiled decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jevify.errors import InputError
from jevify.evidence.fields import require_flag, require_text, tables
from jevify.evidence.kinds.base import (
    Arm,
    Case,
    ModelScenario,
    check_common,
    parse_arms,
    parse_case,
    require_different,
)


@dataclass(frozen=True, kw_only=True)
class ProfileScenario(ModelScenario):
    """`repeats` decisions of each size in each way, after `warmup` others; each with a context of its own.

    kernels: as many again run under the profiler, for a table of what they spend on the device. trace: a file for the
    profiler's chrome trace, where there is one size and one way; empty for none.
    """

    cases: tuple[Case, ...]
    candidates: tuple[Arm, ...]
    kernels: bool = True
    trace: str = ""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The ways to decide, one after another."""
        return self.candidates

    @property
    def most_questions(self) -> int:
        """Questions of the largest case."""
        return max(case.questions for case in self.cases)


def parse(data: Mapping[str, Any], where: str) -> ProfileScenario:
    """A scenario from plain data, under the path `where`. Raises InputError, naming the field."""
    values = check_common(ProfileScenario, data, where)
    values["cases"] = tuple(parse_case(case, path) for path, case in tables(values["cases"], f"{where}.cases"))
    values["candidates"] = parse_arms(values["candidates"], f"{where}.candidates")
    paths = [f"{where}.candidates[{index}]" for index in range(len(values["candidates"]))]
    require_different([arm.name for arm in values["candidates"]], paths)
    require_flag(values.get("kernels", True), f"{where}.kernels")
    require_text(values.get("trace", ""), f"{where}.trace", empty=True)
    if values.get("trace") and len(values["cases"]) * len(values["candidates"]) > 1:
        raise InputError(f"{where}.trace: one file holds the trace of one size in one way")
    return ProfileScenario(**values)
