"""Measured drift on disk: one small file for each way of running a model."""

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from jevify.decide.drift import Drift

FORMAT = 1
"""Version of the files, and of the probes: a change of either measures anew."""

Key = Mapping[str, Any]
_log = logging.getLogger(__name__)


def folder() -> Path:
    """Where the files are, in the user's cache."""
    return user_cache_path("jevify") / "measured"


def path_of(key: Key) -> Path:
    """The file of `key`, a JSON-ready mapping of all that the drift depends on."""
    return folder() / f"drift-{hashlib.sha256(_text(key).encode()).hexdigest()[:32]}.json"


def find(key: Key) -> Drift | None:
    """The drift kept for exactly this key. A file that cannot be used is told in a warning, and is as none."""
    path = path_of(key)
    try:
        return _read(path.read_text(encoding="utf-8"), key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%s cannot be used (%s); the drift counts as not measured", path, error)
        return None


def keep(key: Key, drift: Drift) -> None:
    """Write the drift of `key`, whole or not at all, whoever else writes it. A failure is a warning."""
    path = path_of(key)
    record = {
        "format": FORMAT,
        "key": key,
        "nats": drift.nats,
        "questions": drift.questions,
        "shapes": dict(drift.shapes),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".drift-")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        _log.warning("%s cannot be written (%s); the drift is kept by this engine alone", path, error.strerror)


def _read(text: str, key: Key) -> Drift:
    """Raises ValueError for anything but a record of this key."""
    record = json.loads(text)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError("it is no record of this version")
    if _text(record.get("key")) != _text(key):
        raise ValueError("it is of another key")
    nats: Any = record.get("nats")
    questions, shapes = record.get("questions"), record.get("shapes")
    if not isinstance(shapes, dict) or not all(map(_is_distance, (nats, *shapes.values()))) or not shapes:
        raise ValueError("its numbers are not distances")
    if type(questions) is not int or questions < 1:
        raise ValueError("it does not tell how many questions were measured")
    return Drift(float(nats), questions, shapes)


def _is_distance(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _text(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
