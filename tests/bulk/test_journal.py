"""What is on disk after a run that died, and what a run that goes on makes of it."""

import errno
import json
import os
from dataclasses import replace

import pytest

from jevify.bulk import state as states
from jevify.bulk.files import Files
from jevify.bulk.journal import Journal
from jevify.bulk.rows import Place
from jevify.bulk.state import State, check_same, earlier_state, read_state, write_state
from jevify.errors import InputError, JevifyError

pytestmark = pytest.mark.cpu


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.rejects")


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def fill(journal, first, last):
    for row in range(first, last + 1):
        journal.answer(Place(row, 10 * row), {"row": row, "answers": {"ü": row}})


def test_what_is_committed_is_what_the_state_counts(files):
    with Journal(files, State({"a": 1})) as journal:
        fill(journal, 1, 2)
        journal.reject(Place(3, 30), {"row": 3, "reason": "bad"})
        journal.commit()
        fill(journal, 4, 5)
    state = read_state(files.state)
    assert state == State({"a": 1}, 3, 30, files.output.stat().st_size, files.rejects.stat().st_size, 2, 1)
    assert [line["row"] for line in lines(files.output)] == [1, 2]
    assert lines(files.rejects) == [{"row": 3, "reason": "bad"}]


@pytest.mark.parametrize("torn", [b'{"row": 3, "ans', b'{"row": 3, "answers": {}}\n{"ro', b"\n"])
def test_a_torn_end_is_cut(files, torn):
    with Journal(files, State({})) as journal:
        fill(journal, 1, 2)
        journal.reject(Place(3, 30), {"row": 3})
        journal.commit()
    for path in (files.output, files.rejects):
        with open(path, "ab") as file:
            file.write(torn)
    with Journal(files, read_state(files.state)) as journal:
        fill(journal, 4, 4)
        journal.commit()
    assert [line["row"] for line in lines(files.output)] == [1, 2, 4]
    assert lines(files.rejects) == [{"row": 3}]


def test_a_file_that_was_made_before_its_first_commit_is_cut_to_nothing(files):
    files.output.write_bytes(b'{"row": 1}\n')
    with Journal(files, State({})):
        assert files.output.read_bytes() == b""


def test_an_output_that_was_changed_is_refused(files):
    with Journal(files, State({})) as journal:
        fill(journal, 1, 3)
        journal.commit()
    content = files.output.read_bytes()
    files.output.write_bytes(content[:-9])
    with pytest.raises(InputError, match=rf"has {len(content) - 9} bytes, and the run left {len(content)}"):
        Journal(files, read_state(files.state)).__enter__()
    files.output.write_bytes(content.replace(b"\n", b"\r\n"))
    with pytest.raises(InputError, match="was changed since the run"):
        Journal(files, read_state(files.state)).__enter__()
    files.output.unlink()
    with pytest.raises(InputError, match="has 0 bytes"):
        Journal(files, read_state(files.state)).__enter__()


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_last_commit(files, monkeypatch, step):
    """The state counts nothing that is not on disk, whichever step fails; going on loses and repeats nothing."""
    journal = Journal(files, State({})).__enter__()
    fill(journal, 1, 2)
    journal.commit()
    fill(journal, 3, 4)
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*args, **options):
        raise full

    with monkeypatch.context() as broken:
        if step == "write":
            file = journal._open[files.output]

            class Half:
                def write(self, content):
                    file.write(content[:5])
                    raise full

                def close(self):
                    file.close()

            journal._open[files.output] = Half()
        else:
            broken.setattr(os, step, fail)
        with pytest.raises(JevifyError, match=r"cannot be written \(No space left on device\): .*--resume") as caught:
            journal.commit()
    assert caught.value.exit_code == 1
    journal.__exit__(None, None, None)
    state = read_state(files.state)
    assert (state.row, state.decided) == (2, 2)
    with Journal(files, state) as again:
        fill(again, 3, 4)
        again.commit()
    assert [line["row"] for line in lines(files.output)] == [1, 2, 3, 4]
    assert not list(files.output.parent.glob("*.new"))


def test_a_write_that_takes_only_a_part_is_gone_on_with(files):
    with Journal(files, State({})) as journal:
        fill(journal, 1, 1)
        journal.commit()
        file = journal._open[files.output]

        class Slow:
            def write(self, content):
                return file.write(content[:3])

            fileno, close = file.fileno, file.close

        journal._open[files.output] = Slow()
        fill(journal, 2, 3)
        journal.commit()
    assert [line["row"] for line in lines(files.output)] == [1, 2, 3]


def test_text_that_is_no_character_does_not_end_the_run(files):
    with Journal(files, State({})) as journal:
        journal.reject(Place(1, 1), {"row": 1, "reason": "\ud800"})
        journal.commit()
    assert lines(files.rejects)[0]["reason"] == "\ud800"


@pytest.mark.parametrize(
    ("ids", "string"), [([], False), ([1, -(2**63)], False), ([1, 2**63], True), ([1, "a"], True), ([None, 5], False)]
)
def test_the_state_knows_what_kind_of_ids_there_were(files, ids, string):
    with Journal(files, State({})) as journal:
        for row, name in enumerate(ids, 1):
            journal.answer(Place(row, row), {"row": row, **({} if name is None else {"id": name})})
        journal.commit()
    assert journal.state.string_ids is string
    assert journal.state.ids == sum(name is not None for name in ids)


def test_a_state_comes_back_as_it_was(files):
    state = State({"engine": {"model": "é", "settings": {"x": [1]}}}, 3, 2**40, 5, 6, 7, 8, 9, True, True)
    write_state(files.state, state)
    assert read_state(files.state) == state
    assert read_state(files.output) is None


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b'{"schema": 2}', b'{"schema": 1}', b'{"schema": 1, "of": {}, "row": "x"}', b"[" * 9999]
)
def test_a_file_that_is_no_state_is_told(files, content):
    files.state.write_bytes(content)
    with pytest.raises(InputError, match="is no state of a run that this version reads: --force starts over"):
        read_state(files.state)


def test_a_state_with_a_field_of_another_type_is_told(files):
    write_state(files.state, State({}))
    files.state.write_text(files.state.read_text().replace('"offset": 0', '"offset": null'))
    with pytest.raises(InputError, match="is no state"):
        read_state(files.state)


def test_nothing_is_replaced_or_gone_on_with_unasked(files):
    assert earlier_state(files, resume=False, force=False) is None
    assert earlier_state(files, resume=True, force=False) is None
    for path in (files.output, files.rejects):
        path.write_bytes(b"precious")
        for resume in (False, True):
            with pytest.raises(InputError, match=rf"{path.name}: exists, and no state of a run"):
                earlier_state(files, resume=resume, force=False)
        assert earlier_state(files, resume=False, force=True) is None
        path.unlink()
    write_state(files.state, State({}, row=1234))
    with pytest.raises(InputError, match=r"stopped after row 1,234: go on with --resume; --force starts over"):
        earlier_state(files, resume=False, force=False)
    assert earlier_state(files, resume=True, force=False).row == 1234
    write_state(files.state, State({}, finished=True))
    with pytest.raises(InputError, match=r"is finished; --force starts over"):
        earlier_state(files, resume=False, force=False)


def test_every_change_is_told(files):
    engine = {"model": "m", "dtype": "float32", "weights": "w", "settings": {"executor": "packed", "temperature": 1.0}}
    before = State({"input": "i", "workflow": "f", "engine": engine})
    check_same(files.output, before, before.of)
    check_same(files.output, before, {"input": "i"})
    now = {
        "input": "j",
        "workflow": "g",
        "engine": {
            **engine,
            "dtype": "bfloat16",
            "weights": "v",
            "settings": {"executor": "packed", "temperature": 2.0},
        },
    }
    with pytest.raises(InputError) as caught:
        check_same(files.output, before, now)
    assert str(caught.value).splitlines()[:5] == [
        "--resume: the input has changed since the run that began",
        "--resume: the workflow has changed since the run that began",
        '--resume: dtype is "bfloat16", and was "float32" in the run that began',
        "--resume: the weights have changed since the run that began",
        "--resume: temperature is 2.0, and was 1.0 in the run that began",
    ]


def test_the_state_is_replaced_not_written_in_place(files, monkeypatch):
    write_state(files.state, State({}, row=1))
    seen = []

    def watch(source, target):
        seen.append((read_state(files.state).row, json.loads(source.read_text())["row"]))

    monkeypatch.setattr(states.os, "replace", watch)
    write_state(files.state, replace(State({}), row=2))
    assert seen == [(1, 2)]
