"""Answers and rejects on disk: added at the end, and counted only once the state says so."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from jevify.bulk.files import Files, cannot_write
from jevify.bulk.rows import Place
from jevify.bulk.state import State, write_state
from jevify.errors import InputError

_INT64 = range(-(2**63), 2**63)


class Journal:
    """Adds to the two files of a run and commits.

    What was added since the last commit is in memory and may be dropped. A commit writes both files to disk and then
    the state, so that whatever stands behind the bytes that the state counts is the torn end of a run that died: it is
    cut when the journal is opened.
    """

    def __init__(self, files: Files, state: State) -> None:
        self._files = files
        self.state = state
        self._next = state
        self._answers: list[bytes] = []
        self._rejects: list[bytes] = []
        self._open: dict[Path, BinaryIO] = {}

    def __enter__(self) -> "Journal":
        """Cut torn ends. Raises InputError when a file is shorter than the state says, JevifyError for the disk."""
        for path, size in (
            (self._files.answers, self.state.answers_bytes),
            (self._files.rejects, self.state.rejects_bytes),
        ):
            _cut(path, size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.close()

    def answer(self, after: Place, record: Mapping[str, Any]) -> None:
        """Add the answers of a row; `after` is the place behind it."""
        self._answers.append(_line(record))
        name = record.get("id")
        self._next = replace(
            self._moved(after),
            decided=self._next.decided + 1,
            ids=self._next.ids + (name is not None),
            string_ids=self._next.string_ids or isinstance(name, str) or (name is not None and name not in _INT64),
        )

    def reject(self, after: Place, record: Mapping[str, Any]) -> None:
        """Add a row that was set aside."""
        self._rejects.append(_line(record))
        self._next = replace(self._moved(after), set_aside=self._next.set_aside + 1)

    def commit(self) -> None:
        """Make what was added last. Raises JevifyError when the disk takes no more; the last commit then stands."""
        answers, rejects = b"".join(self._answers), b"".join(self._rejects)
        self._append(self._files.answers, answers)
        self._append(self._files.rejects, rejects)
        state = replace(
            self._next,
            answers_bytes=self.state.answers_bytes + len(answers),
            rejects_bytes=self.state.rejects_bytes + len(rejects),
        )
        write_state(self._files.state, state)
        self.state = self._next = state
        self._answers, self._rejects = [], []

    def finish(self) -> None:
        """Say in the state that no row is left; an output without rows is an empty file. Raises JevifyError."""
        if not self._files.parquet:
            try:
                self._files.answers.touch()
            except OSError as error:
                raise cannot_write(self._files.answers, error) from error
        self.state = self._next = replace(self.state, finished=True)
        write_state(self._files.state, self.state)

    def _moved(self, after: Place) -> State:
        return replace(self._next, row=after.row, offset=after.offset)

    def _append(self, path: Path, content: bytes) -> None:
        if not content:
            return
        try:
            if path not in self._open:
                self._open[path] = open(path, "ab", buffering=0)  # noqa: SIM115 - as long as the journal
            file = self._open[path]
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace") + b"\n"


def _cut(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise InputError(
                f"{path}: has {found:,} bytes, and the run left {size:,}: it was changed; --force starts over"
            )
        if found > size:
            os.truncate(path, size)
        if size:
            with open(path, "rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    raise InputError(f"{path}: was changed since the run: --force starts over")
    except OSError as error:
        raise cannot_write(path, error) from error
