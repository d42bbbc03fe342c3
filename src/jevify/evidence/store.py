"""Results on disk: written whole or not at all, never over another by accident."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from jevify.errors import InputError
from jevify.evidence.bench import SCHEMA


def check_output(path: Path, *, force: bool) -> None:
    """Raise InputError when a result cannot be written to `path`: ask before the run, not after it."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if path.exists() and not force:
        raise InputError(f"{path}: exists; name another file, or use --force to replace it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")


def write_result(path: Path, result: dict[str, Any], *, force: bool = False) -> None:
    """Write a result as JSON in one step: a reader sees the old file or the whole new one.

    Raises InputError as `check_output` does.
    """
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    check_output(path, force=force)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_result(path: Path) -> dict[str, Any]:
    """A stored result. Raises InputError when the file is not one, or is of another schema version."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(result, dict) or "schema" not in result or "cases" not in result:
        raise InputError(f"{path}: not the result of a benchmark run")
    if result["schema"] != SCHEMA:
        raise InputError(f"{path}: has schema version {result['schema']}; this version reads {SCHEMA}")
    return result
