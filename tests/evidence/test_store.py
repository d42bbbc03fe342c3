"""Results on disk."""

import json
import tempfile
from pathlib import Path

import pytest

from jevify.errors import InputError, JevifyError
from jevify.evidence.store import check_output, read_result, write_json

pytestmark = pytest.mark.cpu

RESULT = {"schema": 1, "cases": []}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", RESULT)
    assert read_result(tmp_path / "run.json") == RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("precious")
    with pytest.raises(InputError, match=r"run\.json: exists: .*--force"):
        check_output(file, replace=False)
    with pytest.raises(InputError, match="made by another program"):
        write_json(file, RESULT, replace=False)
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    check_output(file)
    write_json(file, RESULT)
    assert read_result(file) == RESULT


def test_what_json_cannot_hold_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("precious")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {**RESULT, "value": float("nan")})
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        check_output(tmp_path)
    with pytest.raises(InputError, match=r"there is no folder .*none: create it first"):
        check_output(tmp_path / "none" / "run.json")


def test_a_folder_that_takes_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(InputError, match=r"cannot be written to \(Permission denied\)"):
        check_output(tmp_path / "run.json")


def test_a_file_that_is_read_is_no_output(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("{}")
    check_output(file, sources=[tmp_path / "absent"])
    with pytest.raises(InputError, match="is read as input"):
        check_output(file, sources=[tmp_path / "absent", tmp_path / "." / "run.json"])
    with file.open() as stream, pytest.raises(InputError, match="is read as input"):
        check_output(file, sources=[stream.fileno()])


def test_a_write_that_fails_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(JevifyError, match="cannot be written"):
        write_json(tmp_path / "none" / "run.json", RESULT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[" * 100_000, "nested too deep"),
        ("[1]", "not the result of a benchmark run"),
        ('{"answers": {}}', "not the result of a benchmark run"),
        (json.dumps({**RESULT, "schema": 99}), "has schema version 99; this version reads 1"),
    ],
)
def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_result(tmp_path / "run.json")
