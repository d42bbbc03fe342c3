"""Rows of a JSONL file: one JSON object a line."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jevify.bulk.rows import READ, Place, Row, Survey
from jevify.decide.jsonpath import Problem, input_error, kind_of
from jevify.decide.jsontext import parse_json, plain
from jevify.errors import InputError

LONGEST_LINE = 64 * 2**20
"""Bytes of one line; a longer one is refused unread, so that memory stays bounded."""

_BLOCK = 2**20
_BOM = b"\xef\xbb\xbf"


class JsonlSource:
    """A JSONL file in UTF-8. Only LF ends a line, after a CR or not; blank lines are passed over and counted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def survey(self) -> Survey:
        """See Source. The rows are the lines, blank ones too."""
        digest, lines, last = hashlib.sha256(), 0, b"\n"
        try:
            with open(self._path, "rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
                    lines += block.count(b"\n")
                    last = block
        except OSError as error:
            raise _unreadable(self._path, error) from error
        return Survey(digest.hexdigest(), lines + (not last.endswith(b"\n")))

    def rows(self, place: Place) -> Iterator[Row]:
        """See Source. The number of a row is that of its line."""
        try:
            with open(self._path, "rb") as file:
                file.seek(place.offset)
                number = place.row
                while line := file.readline(LONGEST_LINE + 1):
                    number += 1
                    whole = len(line) <= LONGEST_LINE or line.endswith(b"\n")
                    if not whole:
                        _pass_over(file)
                    after = Place(number, file.tell())
                    if number == 1:
                        line = line.removeprefix(_BOM)
                    if not whole:
                        yield Row(number, after, reason=f"the line is longer than {LONGEST_LINE >> 20} MiB: split it")
                    elif line.strip():
                        yield _row(number, after, line)
        except OSError as error:
            raise _unreadable(self._path, error) from error


def _row(number: int, after: Place, line: bytes) -> Row:
    try:
        return Row(number, after, fields=_fields(line, f"row {number}"))
    except UnicodeDecodeError as error:
        return Row(number, after, reason=f"not UTF-8 text (byte {error.start} cannot be read)")
    except InputError as error:
        return Row(number, after, reason=str(error))


def _fields(line: bytes, where: str) -> dict[str, Any]:
    data, problems = plain(parse_json(line.rstrip(b"\r\n").decode("utf-8"), where), where)
    if not isinstance(data, dict):
        raise input_error(where, [((), f"must be an object, not {kind_of(data)}")])
    if told := [problem for problem in problems if _is_read(problem)]:
        raise input_error(where, told)
    return data


def _is_read(problem: Problem) -> bool:
    loc, _ = problem
    return not loc or loc[0] in READ


def _pass_over(file: BinaryIO) -> None:
    """Read to the end of a line."""
    while (rest := file.readline(_BLOCK)) and not rest.endswith(b"\n"):
        pass


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions")
