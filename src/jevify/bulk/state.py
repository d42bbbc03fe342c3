"""How far a run is, in a small file beside its output: replaced in one step, never written in place."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jevify.bulk.files import Files, beside, cannot_write
from jevify.errors import InputError

SCHEMA = 1
"""Version of the form of the file."""


@dataclass(frozen=True)
class State:
    """All rows before `row` and `offset` are decided or set aside, in the first bytes of the two files.

    of: what the answers depend on, by part. string_ids: whether some id is no 64-bit whole number.
    """

    of: Mapping[str, Any]
    row: int = 0
    offset: int = 0
    answers_bytes: int = 0
    rejects_bytes: int = 0
    decided: int = 0
    set_aside: int = 0
    ids: int = 0
    string_ids: bool = False
    finished: bool = False


def read_state(path: Path) -> State | None:
    """The state of an earlier run, None when there is no file. Raises InputError when it is not one."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        raise _no_state(path) from None
    if not isinstance(found, dict) or found.pop("schema", None) != SCHEMA:
        raise _no_state(path)
    kinds = {entry.name: Mapping if entry.name == "of" else type(entry.default) for entry in fields(State)}
    if found.keys() != kinds.keys() or not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        raise _no_state(path)
    return State(**found)


def write_state(path: Path, state: State) -> None:
    """Replace the file so that a crash leaves the old state or the new one. Raises JevifyError."""
    temporary = beside(path, ".new")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, **asdict(state)}, file, ensure_ascii=False, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def earlier_state(files: Files, *, resume: bool, force: bool) -> State | None:
    """The state to go on from; None for a run from the first row.

    Raises InputError when there is something that may be neither gone on with nor replaced.
    """
    if force:
        return None
    state = read_state(files.state)
    if state is None:
        for path in files.written:
            if path.exists():
                raise InputError(
                    f"{path}: exists, and no state of a run says how to go on with it: name another file, or use "
                    "--force to start over"
                )
        return None
    if not resume:
        done = "is finished" if state.finished else f"stopped after row {state.row:,}: go on with --resume"
        raise InputError(f"{files.output}: this run {done}; --force starts over")
    return state


def check_same(path: Path, state: State, now: Mapping[str, Any]) -> None:
    """Raise InputError, naming each part, when a part of `now` is not what the earlier run had."""
    changes = [change for part in now for change in _changes(part, state.of.get(part), now[part])]
    if changes:
        raise InputError(
            "\n".join(f"--resume: {change}" for change in changes)
            + f"\n--resume: answers of both would be mixed in {path}: undo the change, or use --force to start over"
        )


def _changes(part: str, before: Any, now: Any) -> list[str]:
    if before == now:
        return []
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [change for name in now for change in _changes(name, before.get(name), now[name])]
    if part in ("input", "workflow", "weights"):
        return [f"the {part} {'have' if part == 'weights' else 'has'} changed since the run that began"]
    return [f"{part} is {json.dumps(now)}, and was {json.dumps(before)} in the run that began"]


def _no_state(path: Path) -> InputError:
    return InputError(f"{path}: is no state of a run that this version reads: --force starts over")
