"""Lines of a JSONL file become rows."""

import hashlib
import json
import tracemalloc

import pytest

from jevify.bulk import jsonl
from jevify.bulk.jsonl import JsonlSource
from jevify.bulk.rows import Place
from jevify.errors import InputError

pytestmark = pytest.mark.cpu
START = Place()


@pytest.fixture
def source(tmp_path):
    def made(content):
        (tmp_path / "in.jsonl").write_bytes(content)
        return JsonlSource(tmp_path / "in.jsonl")

    return made


def rows(source, place=START):
    return list(source.rows(place))


def contexts(source):
    return [(row.number, row.fields["context"]) for row in rows(source)]


def test_only_a_line_feed_ends_a_row(source):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf"
    line = json.dumps({"context": text}, ensure_ascii=False).encode()
    assert contexts(source(line + b"\n" + line)) == [(1, text), (2, text)]


def test_carriage_returns_and_a_byte_order_mark_are_no_part_of_a_row(source):
    assert contexts(source(b'\xef\xbb\xbf{"context": "a"}\r\n{"context": "b\\r"}\r\n')) == [(1, "a"), (2, "b\r")]


def test_blank_lines_are_counted_and_passed_over(source):
    made = source(b'\n{"context": "a"}\n \t\r\n\n{"context": "b"}\n\n')
    assert contexts(made) == [(2, "a"), (5, "b")]
    assert made.survey().rows == 6


@pytest.mark.parametrize(("content", "lines"), [(b"", 0), (b"{}", 1), (b"{}\n", 1), (b"{}\n{}", 2)])
def test_a_survey_counts_lines_and_hashes_the_file(source, content, lines):
    survey = source(content).survey()
    assert (survey.rows, survey.sha256) == (lines, hashlib.sha256(content).hexdigest())
    assert len(rows(source(content))) == lines


def test_any_row_can_be_begun_with(source):
    made = source("".join(f'{{"context": "é{n}"}}\n' for n in range(5)).encode())
    whole = rows(made)
    for index, row in enumerate(whole):
        assert rows(made, row.after) == whole[index + 1 :]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"context": ', "row 2: line 1, column 13: not valid JSON"),
        (b"[1]", "row 2: $: must be an object, not an array"),
        (b'{"context": "\xff"}', "not UTF-8 text (byte 13 cannot be read)"),
        (b'{"context": "a", "context": "b"}', '"context" appears more than once'),
        (b'{"context": "\\ud800"}', "half of a surrogate pair"),
        (b'{"context": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper than 100 levels"),
        (b'{"context": {"n": NaN}}', "NaN"),
    ],
)
def test_a_bad_line_is_told_and_the_next_one_read(source, line, reason):
    first, bad, last = rows(source(b'{"context": "a"}\n' + line + b'\n{"context": "b"}\n'))
    assert (first.reason, last.fields) == (None, {"context": "b"})
    assert bad.fields is None
    assert reason in bad.reason


def test_what_is_wrong_with_a_field_that_is_not_read_does_not_matter(source):
    [row] = rows(source(b'{"context": "a", "score": NaN, "label": 1, "label": 2}'))
    assert row.fields["context"] == "a"


def test_a_line_of_20_mb_is_a_row(source):
    made = source(b'{"context": "' + b"x" * 20_000_000 + b'"}\n{"context": "b"}\n')
    assert [(number, len(text)) for number, text in contexts(made)] == [(1, 20_000_000), (2, 1)]


def test_a_line_beyond_the_bound_is_refused_without_being_held(source, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 1 << 20)
    made = source(b'{"context": "a"}\n' + b"y" * 30_000_000 + b'\n{"context": "b"}\n' + b"z" * ((1 << 20) + 1))
    tracemalloc.start()
    found = rows(made)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row.fields and row.fields["context"] for row in found] == ["a", None, "b", None]
    assert [row.reason for row in found if row.reason] == ["the line is longer than 1 MiB: split it"] * 2
    assert rows(made, found[1].after) == found[2:]
    assert most < 8_000_000
    # A line of exactly the bound is taken.
    exact = b'{"context": "' + b"x" * ((1 << 20) - 15) + b'"}'
    assert len(exact) == 1 << 20
    assert [row.reason for row in rows(source(exact + b"\n" + exact))] == [None, None]


def test_memory_does_not_grow_with_the_file(source):
    line = b'{"context": "' + b"x" * 1000 + b'"}\n'

    def most(count):
        made = source(line * count)
        tracemalloc.start()
        assert made.survey().rows == count
        assert sum(1 for _ in made.rows(Place())) == count
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert most(6_000) < most(2_000) + 100_000


def test_a_file_that_is_not_there_is_told(tmp_path):
    for read in (JsonlSource(tmp_path / "none").survey, lambda: rows(JsonlSource(tmp_path / "none"))):
        with pytest.raises(InputError, match=r"none: cannot be read \(No such file"):
            read()
