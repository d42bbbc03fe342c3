"""Benchmark scenarios: what to run against what, as data in a TOML file."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jevify.decide.settings import DecideSettings
from jevify.errors import InputError

FOLDER = Path("benchmarks")
KINDS = ("decide",)
BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "seed": (0, None),
    "repeats": (1, 10_000),
    "warmup": (0, 1_000),
    "oracle_requests": (0, 1_000),
    "prefix_tokens": (1, 1_048_576),
    "question_tokens": (1, 1_048_576),
    "questions": (1, 4_096),
}
"""Least and greatest value of each number in a scenario; None where there is no greatest."""


@dataclass(frozen=True)
class Case:
    """A request size: `questions` of `question_tokens` tokens each behind `prefix_tokens` shared ones."""

    prefix_tokens: int
    question_tokens: int
    questions: int


@dataclass(frozen=True)
class Arm:
    """One way to run the workload: a name for tables, and engine settings as `DecideSettings` spells them.

    The settings name the executor, so that a run can be held to it.
    """

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class DecideScenario:
    """A comparison of ways to decide on one model.

    Every case runs `warmup` unrecorded rounds and `repeats` timed ones; a round runs the baseline, then each
    candidate, on one request. With `fresh_context` each round has a context of its own, so that nothing can
    be reused; without it all rounds share one. `oracle_requests` distinct requests of each case are also
    judged against the oracle.
    """

    name: str
    kind: str
    model: str
    seed: int
    repeats: int
    cases: tuple[Case, ...]
    baseline: Arm
    candidates: tuple[Arm, ...]
    description: str = ""
    dtype: str = "auto"
    device: str = "auto"
    warmup: int = 1
    fresh_context: bool = True
    oracle_requests: int = 3

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, then the candidates: the order in which a round runs them."""
        return (self.baseline, *self.candidates)

    def data(self) -> dict[str, Any]:
        """The scenario as JSON data."""
        return asdict(self)


def find_scenario(name: str, folder: Path = FOLDER) -> Path:
    """The file of a scenario: `name` is a file `folder/name.toml`, or a path that ends in .toml (and may not exist)."""
    path = Path(name)
    if path.suffix == ".toml":
        return path
    if os.path.isfile(found := folder / f"{name}.toml"):
        return found
    known = ", ".join(path.stem for path in scenario_files(folder)) or "none"
    raise InputError(
        f"scenario {name!r} is not in {folder}/ (it has: {known}); "
        "run from the repository, or give the path of a TOML file"
    )


def scenario_files(folder: Path = FOLDER) -> list[Path]:
    """The scenario files of `folder`, by name."""
    return sorted(folder.glob("*.toml"))


def load_scenario(path: Path) -> DecideScenario:
    """Read a scenario file. Raises InputError, naming the field, for anything unknown, missing or wrong."""
    try:
        return parse_scenario(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError:
        raise InputError(f"{path}: is nested too deep for a scenario") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: not a TOML file: {error}") from error


def parse_scenario(data: Mapping[str, Any], where: str = "scenario") -> DecideScenario:
    """A scenario from plain data, under the path `where`. Raises InputError as `load_scenario` does."""
    _check_keys(DecideScenario, data, where)
    if data["kind"] not in KINDS:
        raise InputError(f"{where}.kind: {data['kind']!r} is not a kind of scenario; use {', '.join(KINDS)}")
    values = dict(data)
    for name in ("name", "model", "description", "dtype", "device"):
        if name in values:
            _require_text(values[name], f"{where}.{name}", empty=name == "description")
    for name in values.keys() & BOUNDS.keys():
        _require_number(values[name], name, where)
    if type(values.get("fresh_context", True)) is not bool:
        raise InputError(f"{where}.fresh_context: {values['fresh_context']!r} is not true or false")
    cases = _tables(values["cases"], f"{where}.cases")
    values["cases"] = tuple(_case(case, path) for path, case in cases)
    values["baseline"] = _arm(values["baseline"], f"{where}.baseline", default_name="baseline")
    candidates = _tables(values["candidates"], f"{where}.candidates")
    values["candidates"] = tuple(_arm(candidate, path) for path, candidate in candidates)
    scenario = DecideScenario(**values)
    names = [arm.name for arm in scenario.arms]
    for index, arm in enumerate(scenario.candidates):
        if names.index(arm.name) <= index:
            raise InputError(f"{where}.candidates[{index}].name: {arm.name!r} is taken; arms need different names")
    return scenario


def _case(data: Any, where: str) -> Case:
    _require_table(data, where)
    _check_keys(Case, data, where)
    for name, value in data.items():
        _require_number(value, name, where)
    return Case(**data)


def _arm(data: Any, where: str, default_name: str | None = None) -> Arm:
    _require_table(data, where)
    settings = dict(data)
    name = settings.pop("name", default_name)
    if name is None:
        raise InputError(f"{where}.name: missing; tables need a name for every arm")
    _require_text(name, f"{where}.name")
    known = [entry.name for entry in fields(DecideSettings)]
    for key in settings:
        if key not in known:
            raise InputError(f"{where}.{key}: unknown setting; the settings are {', '.join(known)}")
    if settings.get("executor", "auto") == "auto":
        raise InputError(f"{where}.executor: name the executor, so that the run can prove that it is the one that ran")
    try:
        DecideSettings(**settings)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return Arm(name, settings)


def _tables(data: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(data, list) or not data:
        raise InputError(f"{where}: give a list of one table or more")
    return [(f"{where}[{index}]", entry) for index, entry in enumerate(data)]


def _check_keys(kind: type[Any], data: Mapping[str, Any], where: str) -> None:
    known = {entry.name: entry for entry in fields(kind)}
    for key in data:
        if key not in known:
            raise InputError(f"{where}.{key}: unknown field; the fields are {', '.join(known)}")
    for key, entry in known.items():
        if entry.default is MISSING and key not in data:
            raise InputError(f"{where}.{key}: missing")


def _require_table(data: Any, where: str) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: {data!r} is not a table")


def _require_text(value: Any, where: str, *, empty: bool = False) -> None:
    if not isinstance(value, str) or not (value or empty):
        raise InputError(f"{where}: {value!r} is not a text")


def _require_number(value: Any, name: str, where: str) -> None:
    low, high = BOUNDS[name]
    if type(value) is not int or value < low or (high is not None and value > high):
        wanted = f"of at least {low}" if high is None else f"from {low} to {high:,}"
        raise InputError(f"{where}.{name}: {value!r} is not a whole number {wanted}")
