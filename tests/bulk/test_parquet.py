"""Rows out of Parquet files, and answers into one."""

import builtins
import json

import pytest

from jevify import Choice, Noul, Score, Workflow
from jevify.bulk import parquet
from jevify.bulk.parquet import ParquetSource, need_pyarrow, write_parquet
from jevify.bulk.rows import Place
from jevify.bulk.state import State
from jevify.decide.answers import build_answer
from jevify.errors import InputError, JevifyError, SettingError

pytestmark = pytest.mark.cpu


def test_without_pyarrow_it_is_refused_with_what_to_do(monkeypatch, tmp_path):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError("No module named 'pyarrow'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    for call in (need_pyarrow, ParquetSource):
        with pytest.raises(SettingError, match=r"x\.parquet: Parquet needs pyarrow.*pip install 'jevify\[batch\]'"):
            call(tmp_path / "x.parquet")


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow", reason="pip install 'jevify[batch]'")


@pytest.fixture
def store(pa, tmp_path):
    def made(columns, **options):
        pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), tmp_path / "in.parquet", **options)
        return ParquetSource(tmp_path / "in.parquet")

    return made


def test_rows_come_in_order_and_can_be_begun_with_anywhere(store, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS_READ", 3)
    made = store({"context": [f"c{n}" for n in range(1, 24)], "id": range(1, 24)}, row_group_size=7)
    rows = list(made.rows(Place()))
    assert [row.fields for row in rows] == [{"id": n, "context": f"c{n}"} for n in range(1, 24)]
    assert [(row.number, row.after) for row in rows] == [(n, Place(n)) for n in range(1, 24)]
    for done in range(24):
        assert list(made.rows(Place(done))) == rows[done:]
    assert made.survey().rows == 23


def test_only_the_columns_that_are_read_are_read(store):
    made = store({"label": [1, 2], "context": ["a", None], "prompt": ["Red?", None], "messages": [[1], [2]]})
    assert [row.fields for row in made.rows(Place())] == [
        {"context": "a", "prompt": "Red?"},
        {"context": None, "prompt": None},
    ]
    assert made.survey().unread == ("label", "messages")


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_text_of_every_layout_is_read(store, pa, kind):
    wanted = pa.dictionary(pa.int8(), pa.string()) if kind == "dictionary" else getattr(pa, kind)()
    made = store({"context": pa.array(["a", "\u2028"]).cast(wanted)})
    assert made.survey().rows == 2
    assert [row.fields["context"] for row in made.rows(Place())] == ["a", "\u2028"]


def test_bytes_that_are_no_text_are_told(store, pa):
    array = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    assert [(row.fields or {}).get("context") or row.reason for row in store({"context": array}).rows(Place())] == [
        "a",
        "not UTF-8 text (byte 0 cannot be read)",
        "c",
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, "has no column context: its columns are text"),
        ({"context": [1]}, "column context holds int64: it must hold text"),
        ({"context": ["a"], "id": [1.5]}, "column id holds double: it must hold text or whole numbers"),
        ({"context": ["a"], "prompt": [1]}, "column prompt holds int64: it must hold text"),
    ],
)
def test_columns_of_the_wrong_kind_are_refused(store, columns, message):
    with pytest.raises(InputError, match=message):
        store(columns).survey()


def test_a_file_that_is_no_parquet_is_refused(pa, tmp_path):
    (tmp_path / "in.parquet").write_bytes(b"{}")
    with pytest.raises(InputError, match=r"in\.parquet: cannot be read as Parquet"):
        ParquetSource(tmp_path / "in.parquet").survey()
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        ParquetSource(tmp_path / "none.parquet").survey()


WORKFLOW = Workflow(
    questions={
        "a.b": Choice(criteria=["x", "é", "0"]),
        "late": Noul(instructions="Late?"),
        "mood": Score(criteria=["fine", "bad"]),
        "one": Choice(criteria=["only"]),
    }
)


def record(row, **more):
    shares = {name: list(range(1, len(asked.labels) + 1)) for name, asked in WORKFLOW.questions.items()}
    answers = {name: build_answer(asked, shares[name]) for name, asked in WORKFLOW.questions.items()}
    return {"row": row, **more, "answers": answers, "near_ties": [] if row % 2 else ["late"]}


def write(tmp_path, records, state):
    content = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in records).encode()
    (tmp_path / "a.jsonl").write_bytes(content)
    write_parquet(
        tmp_path / "a.jsonl", tmp_path / "out.parquet", WORKFLOW, State({}, answers_bytes=len(content), **state)
    )


def read(tmp_path):
    return pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "out.parquet").to_pylist()


def test_a_parquet_row_holds_what_the_line_holds(pa, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS_WRITTEN", 4)
    records = [record(n, id=n) for n in range(1, 11)]
    write(tmp_path, records, {"ids": 10})
    assert read(tmp_path) == records
    file = pytest.importorskip("pyarrow.parquet").ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [4, 4, 2]


def test_ids_are_text_where_one_is(pa, tmp_path):
    write(tmp_path, [record(1, id=2**63), record(2), record(3, id="x")], {"ids": 2, "string_ids": True})
    assert [row["id"] for row in read(tmp_path)] == [str(2**63), None, "x"]
    write(tmp_path, [record(1)], {})
    assert read(tmp_path) == [record(1)]


def test_an_unknown_drift_is_null(pa, tmp_path):
    write(tmp_path, [{**record(1), "near_ties": None}], {})
    assert read(tmp_path)[0]["near_ties"] is None


def test_without_rows_there_is_a_file_without_rows(pa, tmp_path):
    write_parquet(tmp_path / "none", tmp_path / "out.parquet", WORKFLOW, State({}))
    assert read(tmp_path) == []


def test_a_write_that_fails_leaves_no_file(pa, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.os, "replace", full)
    with pytest.raises(JevifyError, match=r"out\.parquet: cannot be written \(No space left on device\)"):
        write(tmp_path, [record(1)], {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
