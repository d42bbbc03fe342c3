"""One row of an input: where it stands, and what it asks."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jevify.decide.jsonpath import input_error, kind_of
from jevify.decide.request import Request
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

READ = ("id", "context", "messages", "prompt", "prompts")
"""The fields of a row that are read."""

_KEPT_WORKFLOWS = 64


@dataclass(frozen=True)
class Place:
    """Where the next row begins: the rows before it, and in a JSONL file the bytes."""

    row: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Row:
    """A row as it was read: its fields, or the reason why it cannot be. Numbers begin with 1."""

    number: int
    after: Place
    fields: Mapping[str, Any] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Survey:
    """What is known of an input before its rows are read.

    sha256: of the whole file, in hex. rows: the number of the last row, at most. unread: columns that are not read.
    """

    sha256: str
    rows: int
    unread: tuple[str, ...] = ()


class Source(Protocol):
    """A file of rows, read from any row on without holding it in memory."""

    def survey(self) -> Survey:
        """Read the whole file once. Raises InputError."""

    def rows(self, place: Place) -> Iterator[Row]:
        """The rows from `place` on. Raises InputError when the file cannot be read on."""


@dataclass(frozen=True)
class Asked:
    """A row that may be decided."""

    id: str | int | None
    context: Any
    workflow: Workflow


class RowReader:
    """Turns the fields of a row into a request for `workflow`.

    `unread` holds the names of the first few fields that it met and did not read.
    """

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        # Equal prompts share one workflow, which the engine then knows.
        self._prompted: OrderedDict[str, Workflow] = OrderedDict()
        self.unread: dict[str, None] = {}

    def read(self, row: Row) -> Asked:
        """What the row asks. Raises InputError with everything that is wrong with it."""
        if row.fields is None:
            raise InputError(row.reason or "holds no fields")
        where = f"row {row.number}"
        for name in row.fields:
            if name not in READ and len(self.unread) < 8:
                self.unread[name] = None
        given = {name: row.fields[name] for name in READ if row.fields.get(name) is not None}
        name = given.pop("id", None)
        if name is not None and type(name) not in (str, int):
            raise input_error(where, [(("id",), f"must be a string or a whole number, not {kind_of(name)}")])
        context, workflow = Request.parse(given, where).resolve(self._workflow)
        return Asked(name, context, self._known(given, workflow))

    def _known(self, given: Mapping[str, Any], workflow: Workflow) -> Workflow:
        prompts = [given.get("prompt"), given.get("prompts")]
        if prompts == [None, None]:
            return self._workflow
        key = json.dumps(prompts)
        known = self._prompted.setdefault(key, workflow)
        self._prompted.move_to_end(key)
        if len(self._prompted) > _KEPT_WORKFLOWS:
            self._prompted.popitem(last=False)
        return known


def id_of(row: Row) -> str | int | None:
    """The id of a row that was refused, where it has one that can be told."""
    name = (row.fields or {}).get("id")
    return name if type(name) in (str, int) else None


def reason_of(error: Exception, row: int) -> str:
    """Why a row was set aside, on one line; the number of the row stands beside it."""
    lines = (line.removeprefix(f"row {row}: ") for line in str(error).splitlines())
    text = "; ".join(line for line in lines if line)
    return text if isinstance(error, InputError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")
