"""From a file or a Python mapping to plain JSON data, refusing what JSON readers usually let pass."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jevify.decide.jsonpath import Loc, Problem, input_error, kind_of, quoted
from jevify.errors import InputError

MAX_DEPTH = 100
"""Levels of nesting accepted; the walks over the data are recursive."""

_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Pairs(list[tuple[str, Any]]):
    """The members of one JSON object as written, repeated keys included."""


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file (a leading byte order mark is dropped); InputError names the file."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text (byte {error.start} cannot be read): save the file as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}): check the path and its permissions") from None


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text for `plain`, which must see the result before anyone else does.

    Raises InputError with line and column when the text is not JSON.
    """
    if not text.strip():
        raise InputError(f"{where}: is empty: write a JSON object")
    try:
        return json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}): correct it"
        ) from None
    except RecursionError:
        raise InputError(f"{where}: is nested deeper than {MAX_DEPTH} levels: flatten it") from None
    except ValueError:
        # Python refuses to convert an integer of more than 4,300 digits.
        raise InputError(f"{where}: holds a number with too many digits: write it as a string") from None


def plain(value: Any, where: str) -> tuple[Any, list[Problem]]:
    """Copy a parsed or Python value into dicts, lists and scalars, with what JSON could not hold.

    Tuples become arrays and pydantic models their JSON form. Reported: repeated keys, keys that are no
    strings, NaN and infinities, lone surrogates (replaced in the copy), other Python objects. The given value
    is not changed. Raises InputError when the nesting is deeper than MAX_DEPTH.
    """
    problems: list[Problem] = []

    def text(value: str, loc: Loc) -> str:
        if not _LONE_SURROGATE.search(value):
            return value
        problems.append((loc, "holds half of a surrogate pair, which is no character: remove it"))
        return _LONE_SURROGATE.sub("\ufffd", value)

    def members(pairs: Iterable[tuple[Any, Any]], loc: Loc) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in pairs:
            if not isinstance(key, str):
                problems.append((loc, f"has the key {key!r}, {kind_of(key)}: keys must be strings"))
                continue
            if key in copy:
                problems.append(((*loc, key), f"{quoted(key)} appears more than once here: rename or remove one"))
            here = (*loc, key)
            copy[text(key, here)] = walk(item, here)
        return copy

    def walk(value: Any, loc: Loc) -> Any:
        if len(loc) >= MAX_DEPTH and isinstance(value, list | tuple | Mapping):
            # At once, since a Python value may contain itself.
            raise input_error(where, [(loc[:2], f"is nested deeper than {MAX_DEPTH} levels: flatten it")])
        match value:
            case None | bool() | int():
                return value
            case float():
                if not math.isfinite(value):
                    problems.append((loc, "is NaN or beyond the range of numbers: write a finite number or null"))
                return value
            case str():
                return text(value, loc)
            case _Pairs():
                return members(value, loc)
            case Mapping():
                return members(value.items(), loc)
            case list() | tuple():
                return [walk(item, (*loc, index)) for index, item in enumerate(value)]
            case BaseModel():
                return walk(value.model_dump(), loc)
            case _:
                problems.append((loc, f"is {kind_of(value)}, which JSON cannot hold: convert it first"))
                return value

    return walk(value, ()), problems
