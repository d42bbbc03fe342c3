"""Results on disk."""

import json
from pathlib import Path

import pytest

from jevify.errors import InputError
from jevify.evidence.store import check_output, read_result, write_result

pytestmark = pytest.mark.cpu

RESULT = {"schema": 1, "cases": []}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_result(tmp_path / "run.json", RESULT)
    assert read_result(tmp_path / "run.json") == RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("precious")
    with pytest.raises(InputError, match=r"run\.json: exists; .*--force"):
        write_result(file, RESULT)
    assert file.read_text() == "precious"
    write_result(file, RESULT, force=True)
    assert read_result(file) == RESULT


def test_what_json_cannot_hold_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("precious")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_result(file, {**RESULT, "value": float("nan")}, force=True)
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        check_output(tmp_path, force=True)
    with pytest.raises(InputError, match="does not exist; create it first"):
        check_output(tmp_path / "none" / "run.json", force=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[1]", "not the result of a benchmark run"),
        ('{"answers": {}}', "not the result of a benchmark run"),
        (json.dumps({**RESULT, "schema": 99}), "has schema version 99; this version reads 1"),
    ],
)
def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_result(tmp_path / "run.json")
