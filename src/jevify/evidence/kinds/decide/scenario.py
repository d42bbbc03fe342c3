"""Scenarios of whole decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jevify.errors import InputError
from jevify.evidence.fields import check_numbers, require_flag, require_table, require_text, tables
from jevify.evidence.kinds.base import (
    Arm,
    Case,
    ModelScenario,
    check_common,
    parse_arm,
    parse_case,
    require_different,
)
from jevify.evidence.targets import Targets, parse_targets

RIVALS = ("padded-batch", "compiled-batch")
"""Other ways to run whole questions on the transformers modules: in one padded batch, as it is or compiled."""


@dataclass(frozen=True)
class DecideArm(Arm):
    """An arm, which may be one of the RIVALS in the place of an executor of ours."""

    rival: str | None = None


@dataclass(frozen=True)
class TargetedCase(Case):
    """A request size, and what its `target_arm` must reach."""

    targets: Targets | None = None


@dataclass(frozen=True, kw_only=True)
class DecideScenario(ModelScenario):
    """A comparison of ways to decide on one model.

    Every case runs `warmup` unrecorded rounds and `repeats` timed ones; a round runs the baseline, then each
    candidate, on one request. With `fresh_context` each round has a context of its own, so that nothing can
    be reused; without it all rounds share one. `oracle_requests` distinct requests of each case are also
    judged against the oracle. With `noise_floor` the baseline is compared with itself too. The targets of a case
    are held against `target_arm`, the last candidate where it is empty. `cold` fresh processes for each arm of each
    case load and decide with empty compile caches, and as many with those left by them.
    """

    cases: tuple[TargetedCase, ...]
    baseline: DecideArm
    candidates: tuple[DecideArm, ...]
    fresh_context: bool = True
    oracle_requests: int = 3
    noise_floor: bool = False
    cold: int = 0
    target_arm: str = ""

    @property
    def arms(self) -> tuple[DecideArm, ...]:
        """The baseline, then the candidates: the order in which a round runs them."""
        return (self.baseline, *self.candidates)

    @property
    def most_questions(self) -> int:
        """Questions of the largest case."""
        return max(case.questions for case in self.cases)


def parse(data: Mapping[str, Any], where: str) -> DecideScenario:
    """A scenario from plain data, under the path `where`. Raises InputError, naming the field."""
    values = check_common(DecideScenario, data, where)
    check_numbers(data, {"oracle_requests": (0, 1_000), "cold": (0, 100)}, where)
    for name in ("fresh_context", "noise_floor"):
        if name in values:
            require_flag(values[name], f"{where}.{name}")
    values["cases"] = tuple(_case(case, path) for path, case in tables(values["cases"], f"{where}.cases"))
    values["baseline"] = _arm(values["baseline"], f"{where}.baseline", default_name="baseline")
    candidates = tables(values["candidates"], f"{where}.candidates")
    values["candidates"] = tuple(_arm(entry, path) for path, entry in candidates)
    scenario = DecideScenario(**values)
    paths = [f"{where}.baseline", *(path for path, _ in candidates)]
    names = [arm.name for arm in scenario.arms]
    require_different(names, paths)
    require_text(scenario.target_arm, f"{where}.target_arm", empty=True)
    if scenario.target_arm and scenario.target_arm not in names:
        raise InputError(f"{where}.target_arm: {scenario.target_arm!r} is no arm; the arms are {', '.join(names)}")
    return scenario


def _case(data: Any, where: str) -> TargetedCase:
    require_table(data, where)
    values = dict(data)
    targets = values.pop("targets", None)
    size = parse_case(values, where)
    return TargetedCase(
        size.prefix_tokens,
        size.question_tokens,
        size.questions,
        None if targets is None else parse_targets(targets, f"{where}.targets"),
    )


def _arm(data: Any, where: str, default_name: str | None = None) -> DecideArm:
    require_table(data, where)
    settings = dict(data)
    rival = settings.pop("rival", None)
    arm = parse_arm(settings, where, default_name)
    if rival is not None and rival not in RIVALS:
        raise InputError(f"{where}.rival: {rival!r} is not known; the rivals are {', '.join(RIVALS)}")
    if rival is not None and arm.settings["executor"] != "independent":
        raise InputError(f"{where}.rival: a rival takes the place of the independent executor; name that one")
    return DecideArm(arm.name, arm.settings, rival)
