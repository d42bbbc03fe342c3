"""Rows from a Parquet file, and answers into one; pyarrow is an extra."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from jevify.bulk.files import beside, cannot_write
from jevify.bulk.rows import Place, Row, Survey
from jevify.bulk.state import State
from jevify.decide.questions import Choice, Question, Score
from jevify.decide.workflow import Workflow
from jevify.errors import InputError, SettingError

COLUMNS = ("id", "context", "prompt")
"""The columns that are read; `context` must be there."""

_ROWS_READ = 256
_ROWS_WRITTEN = 4_096


def need_pyarrow(path: Path) -> None:
    """Raise SettingError when pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401 - whether it can be imported
    except ImportError as error:
        raise SettingError(
            f"{path}: Parquet needs pyarrow, which cannot be imported ({error}): pip install 'jevify[batch]', or use "
            "JSONL"
        ) from None


class ParquetSource:
    """A Parquet file with a text column `context`, and `id` and `prompt` where they are. Raises as `need_pyarrow`."""

    def __init__(self, path: Path) -> None:
        need_pyarrow(path)
        self._path = path

    def survey(self) -> Survey:
        """See Source. Raises InputError for columns of the wrong type."""
        import pyarrow.types as kinds

        file = self._file()
        schema = file.schema_arrow
        if "context" not in schema.names:
            raise InputError(f"{self._path}: has no column context: its columns are {', '.join(schema.names)}")
        for name in COLUMNS:
            if name not in schema.names:
                continue
            kind = schema.field(name).type
            kind = kind.value_type if kinds.is_dictionary(kind) else kind
            text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
            if not (text or (name == "id" and kinds.is_integer(kind))):
                wanted = "text or whole numbers" if name == "id" else "text"
                raise InputError(f"{self._path}: column {name} holds {kind}: it must hold {wanted}")
        try:
            with open(self._path, "rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read ({error.strerror})") from error
        unread = tuple(name for name in schema.names if name not in COLUMNS)
        return Survey(digest, file.metadata.num_rows, unread)

    def rows(self, place: Place) -> Iterator[Row]:
        """See Source. Rows are numbered from 1 in the order of the file; row groups before `place` are not read."""
        file = self._file()
        first, skipped = 0, place.row
        while first < file.num_row_groups and skipped >= (size := file.metadata.row_group(first).num_rows):
            first, skipped = first + 1, skipped - size
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        number = place.row - skipped
        for batch in self._batches(file, range(first, file.num_row_groups), columns):
            for index in range(batch.num_rows):
                number += 1
                if number > place.row:
                    yield _row(number, batch, index)

    def _batches(self, file: Any, groups: Iterable[int], columns: list[str]) -> Iterator[Any]:
        import pyarrow

        try:
            yield from file.iter_batches(_ROWS_READ, row_groups=list(groups), columns=columns, use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{self._path}: cannot be read on ({error})") from error

    def _file(self) -> Any:
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self._path)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{self._path}: cannot be read as Parquet ({error})") from error


def _row(number: int, batch: Any, index: int) -> Row:
    after = Place(number)
    try:
        return Row(number, after, fields={name: batch.column(name)[index].as_py() for name in batch.schema.names})
    except UnicodeDecodeError as error:
        return Row(number, after, reason=f"not UTF-8 text (byte {error.start} cannot be read)")


def write_parquet(answers: Path, output: Path, workflow: Workflow, state: State) -> None:
    """Make `output` from the JSONL of answers, whole or not at all; its rows hold what the lines hold.

    ids are 64-bit whole numbers where all of them are, else text. Memory holds one row group. Raises JevifyError.
    """
    import pyarrow
    import pyarrow.parquet

    schema = _schema(workflow, state)
    temporary = beside(output, ".new")
    try:
        with pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
            records = _records(answers, state)
            while rows := list(islice(records, _ROWS_WRITTEN)):
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(output, error) from error


def _records(answers: Path, state: State) -> Iterator[dict[str, Any]]:
    if not state.answers_bytes:
        return
    with open(answers, "rb") as file:
        for line in file:
            record = json.loads(line)
            if state.string_ids and "id" in record:
                record["id"] = str(record["id"])
            yield record


def _schema(workflow: Workflow, state: State) -> Any:
    import pyarrow

    fields = [("row", pyarrow.int64())]
    if state.ids:
        fields.append(("id", pyarrow.string() if state.string_ids else pyarrow.int64()))
    answers = pyarrow.struct([(name, _answer(question)) for name, question in workflow.questions.items()])
    return pyarrow.schema([*fields, ("answers", answers), ("near_ties", pyarrow.list_(pyarrow.string()))])


def _answer(question: Question) -> Any:
    """The type of an answer, field by field as `build_answer` makes it."""
    import pyarrow

    number, text = pyarrow.float64(), pyarrow.string()
    shares = ("probabilities", pyarrow.struct([(label, number) for label in question.labels]))
    if isinstance(question, Choice):
        return pyarrow.struct([("type", text), ("choice", text), ("confidence", number), shares])
    if isinstance(question, Score):
        legend = ("legend", pyarrow.struct([(label, text) for label in question.labels]))
        return pyarrow.struct([("type", text), ("score", number), legend, shares, ("confidence", number)])
    return pyarrow.struct([("type", text), ("noul", number), shares])
