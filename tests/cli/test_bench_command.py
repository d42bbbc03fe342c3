"""`jevify bench`, with a fake engine in the place of a model."""

import argparse
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.cli import bench
from jevify.errors import InputError, JevifyError
from jevify.evidence.bench import run_benchmark
from jevify.evidence.scenario import load_scenario

pytestmark = pytest.mark.cpu

SCENARIO = """
name = "small"
description = "a small comparison"
kind = "decide"
model = "fake"
seed = 7
repeats = 3
cases = [{ prefix_tokens = 50, question_tokens = 20, questions = 4 }]
baseline = { name = "independent", executor = "independent" }
candidates = [{ name = "packed", executor = "packed" }]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "small.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str, meddle: Any = lambda executor, decision, log: None) -> int:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers(dest="command"))
    args = parser.parse_args(["bench", *words])
    assert args.run is bench.run
    fake = FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]}, meddle=meddle)
    return bench.run(args, load=lambda scenario: FakeEngine(fake))


def fail_packed(executor: str, decision: dict[str, Any], log: Any) -> None:
    if executor == "packed":
        raise RuntimeError("out of luck")


def interrupt_packed(executor: str, decision: dict[str, Any], log: Any) -> None:
    # The first round is warm-up, the second the first timed one.
    if len(log) > 4:
        raise KeyboardInterrupt


def test_a_run_prints_its_table_on_stdout_and_its_progress_on_stderr(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("small") == 0
    out, err = capsys.readouterr()
    assert "small: fake, dtype auto, device auto" in out
    assert "command: jevify bench small" in out
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert [row.split("|")[2].strip() for row in rows[2:]] == ["independent", "packed"]
    assert "sharing the prefix can give 2.15x" in out
    assert err.splitlines()[-1] == "13/13"
    assert list(folder.iterdir()) == [folder / "benchmarks"]


def test_a_stored_run_shows_the_same_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("small", "--output", "run.json", "--repeats", "2") == 0
    first = capsys.readouterr().out
    stored = json.loads((folder / "run.json").read_text())
    assert stored["command"] == "jevify bench small --repeats 2 --output run.json"
    assert stored["scenario"]["repeats"] == 2
    assert [len(row["samples_ms"]) for row in stored["cases"][0]["arms"]] == [2, 2]
    assert call("--show", "run.json") == 0
    assert capsys.readouterr().out == first
    assert call("--show", "run.json", "run.json") == 0
    assert capsys.readouterr().out == f"{first}\n{first}"


def test_an_existing_output_is_refused_before_anything_runs(folder: Path) -> None:
    (folder / "run.json").write_text("precious")
    ran = []
    with pytest.raises(InputError, match="exists"):
        call("small", "--output", "run.json", meddle=lambda *_: ran.append(True))
    assert not ran
    assert (folder / "run.json").read_text() == "precious"
    assert call("small", "--output", "run.json", "--force") == 0
    assert json.loads((folder / "run.json").read_text())["command"].endswith("--output run.json --force")


def test_an_output_that_cannot_be_written_is_refused_before_the_model_loads(folder: Path) -> None:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", "small", "--output", "none/run.json"])
    with pytest.raises(InputError, match=r"there is no folder .*none"):
        bench.run(args, load=lambda scenario: pytest.fail("the model was loaded"))


def test_the_model_is_loaded_as_quietly_as_for_a_decision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(model: str, **options: Any) -> FakeEngine:
        asked.append((model, options))
        return FakeEngine(FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]}))

    monkeypatch.setattr(bench, "load_engine", load)
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    assert bench.run(parser.parse_args(["bench", "small"])) == 0
    assert asked == [("fake", {"device": "auto", "dtype": "auto"})]


def test_a_write_that_fails_at_the_end_keeps_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(JevifyError, match=r"run\.json: cannot be written \(No space left on device\)"):
        call("small", "--output", "run.json")
    assert "sharing the prefix can give 2.15x" in capsys.readouterr().out
    assert list(folder.iterdir()) == [folder / "benchmarks"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"packed" }', '"packed", branch_batch_size = 2 }', "--branch-batch-size 2 has no effect on the packed"),
        ("seed = 7", 'seed = 7\ndevice = "tpu"', "--device is 'tpu'"),
        ("seed = 7", 'seed = 7\ndtype = "int8"', "dtype is 'int8'"),
        ("questions = 4 }", "questions = 33 }", "independent takes 32 questions at most"),
    ],
)
def test_what_no_device_can_do_is_refused_before_the_model_loads(
    folder: Path, old: str, new: str, message: str
) -> None:
    assert old in SCENARIO
    (folder / "bad.toml").write_text(SCENARIO.replace(old, new))
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    with pytest.raises(InputError, match=f"scenario small: .*{message}"):
        bench.run(parser.parse_args(["bench", "bad.toml"]), load=lambda scenario: pytest.fail("the model was loaded"))


@pytest.mark.parametrize(
    "stored",
    [
        {"cases": []},
        {"cases": [], "scenario": {}, "environment": 5},
        {"cases": {"a": 1}},
        {"cases": [5], "scenario": None},
    ],
)
def test_a_stored_run_of_the_wrong_shape_is_refused(folder: Path, stored: dict[str, Any]) -> None:
    (folder / "run.json").write_text(json.dumps({"schema": 1, **stored}))
    with pytest.raises(InputError, match=r"run\.json: not the whole result"):
        call("--show", "run.json")


def test_a_failed_arm_is_stored_and_told_with_exit_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("small", "--output", "run.json", meddle=fail_packed) == 1
    assert "FAILED N=4 P=50 Q=20, packed: warm-up: RuntimeError: out of luck" in capsys.readouterr().out
    baseline, packed = json.loads((folder / "run.json").read_text())["cases"][0]["arms"]
    assert len(baseline["samples_ms"]) == 3
    assert packed["error"] == "warm-up: RuntimeError: out of luck"


def test_an_interrupted_run_is_stored_as_such(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("small", "--output", "run.json", meddle=interrupt_packed) == 1
    assert "INTERRUPTED" in capsys.readouterr().out
    stored = json.loads((folder / "run.json").read_text())
    assert stored["interrupted"]
    assert [len(row["samples_ms"]) for row in stored["cases"][0]["arms"]] == [1, 1]


def test_an_interrupted_run_goes_on_in_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = SCENARIO.replace(
        "questions = 4 }", "questions = 4 }, { prefix_tokens = 9, question_tokens = 20, questions = 2 }"
    )
    (folder / "benchmarks" / "two.toml").write_text(two)

    def interrupt_second(executor: str, decision: dict[str, Any], log: Any) -> None:
        if len(decision["answers"]) == 2:
            raise KeyboardInterrupt

    assert call("two", "--output", "run.json", meddle=interrupt_second) == 1
    first = json.loads((folder / "run.json").read_text())
    with pytest.raises(InputError, match="another scenario"):
        call("small", "--output", "run.json", "--resume")
    assert call("two", "--output", "run.json", "--resume") == 0
    stored = json.loads((folder / "run.json").read_text())
    assert not stored["interrupted"]
    assert stored["cases"][0] == first["cases"][0]
    assert [len(row["samples_ms"]) for row in stored["cases"][1]["arms"]] == [3, 3]
    assert stored["command"] == "jevify bench two --output run.json"
    with pytest.raises(InputError, match=r"none\.json: cannot be read"):
        call("two", "--output", "none.json", "--resume")


def test_scenarios_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--list") == 0
    assert capsys.readouterr().out == "small\ta small comparison\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of SCENARIO, --list and --show"),
        (["small", "--list"], "give one of SCENARIO, --list and --show"),
        (["--list", "--repeats", "3"], "act on a run"),
        (["--show", "x.json", "--output", "y.json"], "act on a run"),
        (["small", "--force"], "--force acts on --output"),
        (["small", "--resume"], "--resume goes on with the run in --output"),
        (["small", "--resume", "--output", "x.json", "--force"], "--resume goes on with the run in --output"),
        (["small", "--repeats", "0"], "--repeats is 0; use a whole number from 1 to 10,000"),
        (["small", "--repeats", "10001"], "--repeats is 10001"),
        (["other"], "'other' is not in benchmarks/ .it has: small"),
        (["--show", "none.json"], "none.json: cannot be read"),
    ],
)
def test_arguments_without_effect_or_sense_are_refused(folder: Path, words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(*words)


def test_the_terminal_table_holds_what_the_markdown_holds(folder: Path) -> None:
    from rich.console import Console

    from jevify.evidence.report import show, tables

    fake = FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]})
    result = run_benchmark(
        load_scenario(folder / "benchmarks" / "small.toml"),
        command="x",
        load=lambda scenario: FakeEngine(fake),
        clock=fake.clock,
    )
    console = Console(width=80, record=True, file=io.StringIO())
    show(result, console)
    text = console.export_text()
    (table,) = tables(result)
    assert all(cell in text for row in table.rows for cell in row)
    assert table.rows[1][:7] == ["", "packed", "2.0", "2.0", "2.0", "4.00 [4.00, 4.00]", "186%"]
    assert table.rows[1][7:10] == ["-", "-", "-"]
    assert table.rows[1][11:] == ["100.0% of 12", "0.0e+00", "0.0e+00"]


def test_a_note_targets_and_every_file_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targeted = SCENARIO.replace("questions = 4 }", "questions = 4, targets = { decide_ms = 5000, ratio = 1e6 } }")
    (folder / "benchmarks" / "targeted.toml").write_text(f'note = "random weights"\n{targeted}')
    assert call("targeted", "--output", "one.json") == 0
    assert call("small", "--output", "two.json") == 0
    capsys.readouterr()
    assert call("--show", "one.json", "two.json") == 0
    out = capsys.readouterr().out
    assert "- random weights\n" in out
    outcomes = [line.split(" | ") for line in out.splitlines() if "decide_ms" in line or " ratio | 1e" in line]
    assert outcomes[0][:3] == ["| N=4 P=50 Q=20, packed", "decide_ms", "5000"]
    assert outcomes[0][4] == "met |"
    assert outcomes[1][4].startswith("missed by 99999")
    assert "command: jevify bench targeted --output one.json" in out
    assert "command: jevify bench small --output two.json" in out


def test_no_file_is_shown_when_one_is_not_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("small", "--output", "run.json") == 0
    capsys.readouterr()
    (folder / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"other\.json: not the result of a benchmark run"):
        call("--show", "run.json", "other.json")
    assert capsys.readouterr().out == ""


def test_a_scenario_without_a_model_loads_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = 'heads = [4, 2, 16]\nprefix = [4]\nbranches = [1]\nrows = [2]\ndevice = "cpu"\ndtype = "float32"\n'
    (folder / "benchmarks" / "map.toml").write_text(f'name = "map"\nkind = "crossover"\nseed = 1\nrepeats = 2\n{grid}')
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", "map"])
    # Nothing can be timed without a GPU, which is told.
    assert bench.run(args, load=lambda scenario: pytest.fail("a model was loaded")) == 1
    assert "map: no model, dtype float32, device cpu" in capsys.readouterr().out
