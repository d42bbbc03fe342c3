"""Results on disk: JSON files that are written whole or not at all, and stored benchmark runs."""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jevify.errors import InputError, JevifyError

SCHEMA = 1
"""Version of the form of a stored benchmark run."""


def json_text(result: Mapping[str, Any]) -> str:
    """The result as indented JSON with a final newline. Raises ValueError for what JSON cannot hold."""
    return json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def check_output(path: Path, *, replace: bool = True, sources: Iterable[Path | int] = ()) -> None:
    """Raise InputError when `write_json` could not write `path`: ask before the run, not after it.

    An existing file is refused without `replace`, and when it is one of the `sources`: paths or descriptors of open
    files.
    """
    target = _target(path)
    if target.is_dir():
        raise InputError(f"--output {path}: is a folder: name a file")
    if target.exists():
        if not target.is_file():
            raise InputError(f"--output {path}: is not a regular file: name another")
        if any(_same(source, target) for source in sources):
            raise InputError(f"--output {path}: is read as input by this run: name another file")
        if not replace:
            raise InputError(f"--output {path}: exists: name another file, or use --force to replace it")
        if not os.access(target, os.W_OK):
            raise InputError(f"--output {path}: is write-protected: name another file")
    if not target.parent.is_dir():
        raise InputError(f"--output {path}: there is no folder {target.parent}: create it first")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise InputError(
            f"--output {path}: the folder {target.parent} cannot be written to ({error.strerror})"
        ) from None


def write_json(path: Path, result: Mapping[str, Any], *, replace: bool = True) -> None:
    """Write the result as JSON; see `write_text`. Raises ValueError for what JSON cannot hold."""
    write_text(path, json_text(result), replace=replace)


def write_text(path: Path, text: str, *, replace: bool = True) -> None:
    """Write the text in one step: a reader sees the old file or the whole new one.

    A symbolic link is followed, and an existing file keeps its mode. Raises InputError when there is a file and it
    may not be replaced, JevifyError when it cannot be written.
    """
    target = _target(path)
    temporary = target.with_name(f".jevify-{secrets.token_hex(8)}")
    try:
        with open(temporary, "x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            if not replace:
                raise InputError(f"--output {path}: was made by another program during the run and is left as it is")
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise JevifyError(f"--output {path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_result(path: Path) -> dict[str, Any]:
    """A stored run. Raises InputError when the file is not one, or is of another schema version."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file: {error}") from error
    except RecursionError:
        raise InputError(f"{path}: not the result of a benchmark run: it is nested too deep") from None
    if not isinstance(result, dict) or "schema" not in result or "cases" not in result:
        raise InputError(f"{path}: not the result of a benchmark run")
    if result["schema"] != SCHEMA:
        raise InputError(f"{path}: has schema version {result['schema']}; this version reads {SCHEMA}")
    return result


def _same(source: Path | int, target: Path) -> bool:
    try:
        return os.path.samestat(os.stat(source), target.stat())
    except (OSError, ValueError):
        return False  # A source that is not there is told where it is read.


def _target(path: Path) -> Path:
    # Replacing a link would leave the file it points to as it was.
    return Path(os.path.realpath(path))
