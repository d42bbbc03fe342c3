"""Going on with an interrupted run: which of its cases stand, and what is left to measure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jevify.errors import InputError
from jevify.evidence.arm import plain
from jevify.evidence.kinds.base import Scenario

_SAME_PLACE = ("source_sha256", "python", "packages", "cpu", "gpus", "threads")


def check_same(scenario: Scenario, surroundings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse to go on with a stored run of another scenario, source or machine: its cases could not stand beside ours.

    surroundings: the `environment` of now. Raises InputError.
    """
    then = stored["environment"]
    different = [name for name in _SAME_PLACE if plain(then.get(name)) != plain(surroundings[name])]
    if plain(stored["scenario"]) != plain(scenario.data()):
        different.insert(0, "scenario")
    if different:
        raise InputError(
            f"--resume: the stored run has another {', '.join(different)}; run it again from the start with --force"
        )


def finished_cases(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cases of a stored run that were not cut short, failures included."""
    return [case for case in stored["cases"] if not case.get("interrupted")]


def rest_of(scenario: Scenario, finished: int) -> Scenario | None:
    """The scenario without its first `finished` cases, or None when there are no others.

    Every kind with several cases runs them one after another.
    """
    cases = scenario.data().get("cases")
    if cases is None:
        return None if finished else scenario
    left = vars(scenario)["cases"][finished:]
    changed: Mapping[str, Any] = {"cases": left}
    return replace(scenario, **changed) if left else None
