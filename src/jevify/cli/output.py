"""Where results go: stdout in UTF-8, and JSON files that are written whole or not at all."""

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from jevify.errors import InputError, JevifyError


def use_utf8() -> None:
    """Make stdout and stderr write UTF-8 whatever the locale; what UTF-8 cannot hold is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def json_text(result: Mapping[str, Any]) -> str:
    """The result as indented JSON with a final newline."""
    return json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush; raises JevifyError when the stream takes no more, BrokenPipeError when nobody reads it."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise JevifyError(f"the result cannot be written to standard output: {error.strerror}") from error


def check_output(path: Path, sources: Iterable[Path] = ()) -> None:
    """Raise InputError when `write_json` could not write `path`, or when it is one of the `sources`."""
    target = _target(path)
    if target.is_dir():
        raise InputError(f"--output {path}: is a folder: name a file")
    if target.exists():
        if not target.is_file():
            raise InputError(f"--output {path}: is not a regular file: name another")
        if any(source.exists() and source.samefile(target) for source in sources):
            raise InputError(f"--output {path}: is read as input by this run: name another file")
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


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result as JSON in one step: a reader sees the old file or the whole new one.

    A symbolic link is followed, and an existing file keeps its mode. Raises JevifyError.
    """
    target = _target(path)
    temporary = target.with_name(f".jevify-{secrets.token_hex(8)}")
    try:
        with open(temporary, "x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(json_text(result))
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise JevifyError(f"--output {path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    # Replacing a link would leave the file it points to as it was.
    return Path(os.path.realpath(path))
