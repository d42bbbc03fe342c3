"""Benchmark scenarios: what to run against what, as data in a TOML file."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jevify.errors import InputError
from jevify.evidence.kinds import KINDS, part
from jevify.evidence.kinds.base import Scenario

FOLDER = Path("benchmarks")


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


def load_scenario(path: Path) -> Scenario:
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


def parse_scenario(data: Mapping[str, Any], where: str = "scenario") -> Scenario:
    """A scenario of the kind it names, under the path `where`. Raises InputError as `load_scenario` does."""
    for field in ("name", "kind"):
        if field not in data:
            raise InputError(f"{where}.{field}: missing")
    if data["kind"] not in KINDS:
        raise InputError(f"{where}.kind: {data['kind']!r} is not a kind of scenario; use {', '.join(KINDS)}")
    scenario: Scenario = part(data["kind"], "scenario").parse(data, where)
    return scenario
