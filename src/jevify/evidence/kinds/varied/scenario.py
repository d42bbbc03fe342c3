"""Scenarios of varied requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jevify.errors import InputError
from jevify.evidence.fields import (
    check_keys,
    check_numbers,
    require_flag,
    require_positive,
    require_table,
    require_text,
    tables,
    whole_numbers,
)
from jevify.evidence.kinds.base import Arm, ModelScenario, check_common, parse_arm, require_different
from jevify.evidence.traffic import Traffic

_BOUNDS = {"requests": (1, 100_000), "warmup": (0, 1_000), "rubrics": (1, 1_000)}


@dataclass(frozen=True)
class VariedArm(Arm):
    """An arm with its own numbers of requests, None for those of the scenario; `grows`: whether it takes all passes."""

    requests: int | None = None
    warmup: int | None = None
    grows: bool = False


@dataclass(frozen=True)
class VariedTargets:
    """What the target arm must reach.

    hit_rate: the least share of requests that replayed a graph. spread: the greatest p90 over median of one bucket.
    budget_share: the greatest retained graph memory over the budget. growth_mib: the most that driver memory may rise
    from the end of the first pass to the end of the last.
    """

    hit_rate: float | None = None
    spread: float | None = None
    budget_share: float | None = None
    growth_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class VariedScenario(ModelScenario):
    """Ways to decide, each on the same `requests` in the same order after `warmup` others.

    words and questions: least and most of a request; a word is about a token. An arm that `grows` takes `repeats`
    passes over the requests, reordered each time, the others one. An arm is stopped at `arm_seconds`, which is told.
    Break-even counts are against the first arm without graphs. The targets are held against `target_arm`.
    """

    requests: int
    words: tuple[int, int]
    questions: tuple[int, int]
    rubrics: int
    candidates: tuple[VariedArm, ...]
    arm_seconds: float = 600.0
    target_arm: str = ""
    targets: VariedTargets | None = None

    @property
    def arms(self) -> tuple[VariedArm, ...]:
        """The ways to decide, one after another."""
        return self.candidates

    @property
    def most_questions(self) -> int:
        """Questions of the largest set."""
        return self.questions[1]

    @property
    def traffic(self) -> Traffic:
        """What the requests are drawn from."""
        return Traffic(self.words, self.questions, self.rubrics)


def parse(data: Mapping[str, Any], where: str) -> VariedScenario:
    """A scenario from plain data, under the path `where`. Raises InputError, naming the field."""
    values = check_common(VariedScenario, data, where)
    check_numbers(values, _BOUNDS, where)
    values["words"] = _span(values["words"], (1, 100_000), f"{where}.words")
    values["questions"] = _span(values["questions"], (1, 4_096), f"{where}.questions")
    if "arm_seconds" in values:
        require_positive(values["arm_seconds"], f"{where}.arm_seconds")
    entries = tables(values["candidates"], f"{where}.candidates")
    values["candidates"] = tuple(_arm(entry, path) for path, entry in entries)
    names = [arm.name for arm in values["candidates"]]
    require_different(names, [path for path, _ in entries])
    require_text(values.get("target_arm", ""), f"{where}.target_arm", empty=True)
    if "targets" in values:
        values["targets"] = _targets(values["targets"], f"{where}.targets")
        if values.get("target_arm") not in names:
            raise InputError(f"{where}.target_arm: name the arm of the targets, one of {', '.join(names)}")
    return VariedScenario(**values)


def _span(data: Any, bound: tuple[int, int], where: str) -> tuple[int, int]:
    numbers = whole_numbers(data, bound, where)
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise InputError(f"{where}: give the least and the most, not {list(numbers)}")
    return numbers[0], numbers[1]


def _arm(data: Any, where: str) -> VariedArm:
    require_table(data, where)
    settings = dict(data)
    own = {name: settings.pop(name) for name in ("requests", "warmup", "grows") if name in settings}
    check_numbers(own, _BOUNDS, where)
    if "grows" in own:
        require_flag(own["grows"], f"{where}.grows")
    arm = parse_arm(settings, where)
    return VariedArm(arm.name, arm.settings, **own)


def _targets(data: Any, where: str) -> VariedTargets:
    require_table(data, where)
    check_keys(VariedTargets, data, where)
    for name, value in data.items():
        require_positive(value, f"{where}.{name}")
    return VariedTargets(**data)
