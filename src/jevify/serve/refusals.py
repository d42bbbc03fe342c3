"""Replies that are no answers: one exception, turned into one form of JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from jevify.decide.jsonpath import Problem
from jevify.errors import InputError


class Refusal(Exception):
    """A reply with an error status. `detail` is its JSON: a text, or a list of `loc`, `msg` and `type` objects.

    reason: a short name for logs and metrics, which never hold a word of the request.
    """

    def __init__(self, status: int, reason: str, detail: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.detail, self.headers = status, reason, detail, dict(headers or {})

    def response(self) -> Response:
        """As sent."""
        return json_response({"detail": self.detail}, status=self.status, headers=self.headers)


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as compact UTF-8 JSON. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, headers, "application/json")


def unprocessable(problems: list[Problem], reason: str = "invalid") -> Refusal:
    """The 422 that tells every problem with its place in the body."""
    detail = [
        {"loc": ["body", *loc], "msg": text, "type": "missing" if text.startswith("is missing") else "value_error"}
        for loc, text in problems
    ]
    return Refusal(422, reason, detail)


def from_input_error(error: InputError, renamed: Mapping[str, str] | None = None) -> Refusal:
    """The 422 for what the engine refused; `renamed` are its names of top-level fields that the body spells apart."""
    known = renamed or {}
    problems: list[Problem] = [
        ((known.get(str(loc[0]), loc[0]), *loc[1:]) if loc else (), text) for loc, text in error.problems
    ]
    return unprocessable(problems or [((), str(error))])


def too_much(status: int, reason: str, text: str, retry_after_ms: int) -> Refusal:
    """A 429, 503 or 529 that says when to come again."""
    headers = {"retry-after-ms": str(retry_after_ms), "retry-after": str(math.ceil(retry_after_ms / 1e3))}
    return Refusal(status, reason, text, headers)
