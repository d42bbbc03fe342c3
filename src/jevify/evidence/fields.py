"""Checks of plain data against what a scenario may hold; every refusal names the field by its path."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from jevify.errors import InputError

Bound = tuple[int, int | None]
"""Least and greatest value of a number; None where there is no greatest."""


def check_keys(kind: type[Any], data: Mapping[str, Any], where: str) -> None:
    """Refuse what is no field of the dataclass `kind`, and the lack of one without a default."""
    known = {entry.name: entry for entry in fields(kind)}
    for key in data:
        if key not in known:
            raise InputError(f"{where}.{key}: unknown field; the fields are {', '.join(known)}")
    for key, entry in known.items():
        if entry.default is MISSING and entry.default_factory is MISSING and key not in data:
            raise InputError(f"{where}.{key}: missing")


def check_numbers(data: Mapping[str, Any], bounds: Mapping[str, Bound], where: str) -> None:
    """Refuse a value of `data` that has bounds and is not a whole number within them."""
    for name in data.keys() & bounds.keys():
        low, high = bounds[name]
        value = data[name]
        if type(value) is not int or value < low or (high is not None and value > high):
            wanted = f"of at least {low}" if high is None else f"from {low} to {high:,}"
            raise InputError(f"{where}.{name}: {value!r} is not a whole number {wanted}")


def require_table(data: Any, where: str) -> None:
    """Refuse what is not a table."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: {data!r} is not a table")


def require_text(value: Any, where: str, *, empty: bool = False) -> None:
    """Refuse what is not a text, and an empty one unless `empty`."""
    if not isinstance(value, str) or not (value or empty):
        raise InputError(f"{where}: {value!r} is not a text")


def require_flag(value: Any, where: str) -> None:
    """Refuse what is not true or false."""
    if type(value) is not bool:
        raise InputError(f"{where}: {value!r} is not true or false")


def require_positive(value: Any, where: str) -> None:
    """Refuse what is not a number above zero."""
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise InputError(f"{where}: {value!r} is not a number above 0")


def tables(data: Any, where: str) -> list[tuple[str, Any]]:
    """The entries of a list of one table or more, each with its path."""
    if not isinstance(data, list) or not data:
        raise InputError(f"{where}: give a list of one table or more")
    return [(f"{where}[{index}]", entry) for index, entry in enumerate(data)]


def whole_numbers(data: Any, bound: Bound, where: str) -> tuple[int, ...]:
    """A list of one whole number or more within `bound`."""
    if not isinstance(data, list) or not data:
        raise InputError(f"{where}: give a list of one whole number or more")
    for index, value in enumerate(data):
        check_numbers({f"[{index}]": value}, {f"[{index}]": bound}, where)
    return tuple(data)
