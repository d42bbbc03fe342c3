"""What scenarios of every kind have, and what their runners work with."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jevify.decide.settings import DecideSettings
from jevify.errors import InputError
from jevify.evidence.fields import Bound, check_keys, check_numbers, require_table, require_text, tables

Clock = Callable[[], float]
# Called with the steps done, the steps in all, and what runs now.
Progress = Callable[[int, int, str], None]

BOUNDS: Mapping[str, Bound] = {"seed": (0, None), "repeats": (1, 10_000), "warmup": (0, 1_000)}
"""Least and greatest value of the numbers of every scenario."""

_CASE_BOUNDS: Mapping[str, Bound] = {
    "prefix_tokens": (1, 1_048_576),
    "question_tokens": (1, 1_048_576),
    "questions": (1, 4_096),
}
_TEXTS = ("name", "model", "description", "note", "dtype", "device")


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


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A measurement as data. `repeats` counts timed rounds; `note` is printed with the result."""

    name: str
    kind: str
    seed: int
    repeats: int
    warmup: int = 1
    description: str = ""
    note: str = ""
    dtype: str = "auto"
    device: str = "auto"

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The ways to run an engine, in the order of a round; none where no engine is measured."""
        return ()

    @property
    def most_questions(self) -> int:
        """Questions of the largest request."""
        return 0

    def data(self) -> dict[str, Any]:
        """The scenario as JSON data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ModelScenario(Scenario):
    """A scenario that runs the engine of `model`, a catalog name, a folder or a hub id."""

    model: str


@dataclass
class Bench:
    """What a runner works with: `engine` (None where the scenario has no model), a clock of seconds, the progress.

    A runner that keeps what an interrupt left unfinished catches it and sets `interrupted`.
    """

    engine: Any
    clock: Clock
    progress: Progress
    interrupted: bool = False


def check_common(kind: type[Scenario], data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A copy of `data`, its keys and the fields that all scenarios share checked against `kind`. Raises InputError."""
    check_keys(kind, data, where)
    for name in _TEXTS:
        if name in data:
            require_text(data[name], f"{where}.{name}", empty=name in ("description", "note"))
    check_numbers(data, BOUNDS, where)
    return dict(data)


def parse_case(data: Any, where: str) -> Case:
    """A request size from plain data. Raises InputError."""
    require_table(data, where)
    check_keys(Case, data, where)
    check_numbers(data, _CASE_BOUNDS, where)
    return Case(**data)


def parse_arm(data: Any, where: str, default_name: str | None = None) -> Arm:
    """An arm from plain data. Raises InputError, for settings that no engine takes too."""
    require_table(data, where)
    settings = dict(data)
    name = settings.pop("name", default_name)
    if name is None:
        raise InputError(f"{where}.name: missing; tables need a name for every arm")
    require_text(name, f"{where}.name")
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


def parse_arms(data: Any, where: str) -> tuple[Arm, ...]:
    """A list of one arm or more. Raises InputError."""
    return tuple(parse_arm(entry, path) for path, entry in tables(data, where))


def require_different(names: list[str], where: list[str]) -> None:
    """Refuse a name that an earlier arm has; `where` holds the path of each."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"{where[index]}.name: {name!r} is taken; arms need different names")
