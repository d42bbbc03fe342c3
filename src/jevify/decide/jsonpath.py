"""Where in a JSON file something is wrong, and how that is told."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from jevify.errors import InputError

Loc = tuple[str | int, ...]
"""Keys and indexes from the top of a JSON value down to a part of it."""

Problem = tuple[Loc, str]
"""A part of a JSON value, and what is wrong with it and what to do."""


def quoted(text: str) -> str:
    """Return `text` as a JSON string on one line; characters that cannot be shown are escaped."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def json_path(loc: Loc) -> str:
    """Return the JSON path of `loc`, such as `$.questions["a.b"].criteria[2]`."""
    path = "$"
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}"
        else:
            path += f"[{quoted(part)}]"
    return path


def kind_of(value: Any) -> str:
    """Name the JSON kind of a Python value, with its article: "an array", "null"."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
        case Mapping():
            return "an object"
        case _:
            return f"a Python {type(value).__name__}"


def shown(value: Any) -> str:
    """Return a string or other scalar as JSON, and anything else by its kind."""
    if isinstance(value, str):
        return quoted(value)
    return json.dumps(value) if value is None or isinstance(value, int | float) else kind_of(value)


def input_error(where: str, problems: Iterable[Problem]) -> InputError:
    """Return one error that tells every problem on its own line as `where: path: what is wrong`."""
    problems = list(problems)
    return InputError("\n".join(f"{where}: {json_path(loc)}: {text}" for loc, text in problems), problems)
