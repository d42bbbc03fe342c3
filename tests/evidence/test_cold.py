"""Cold starts: fresh processes with empty compile caches, then with those they left."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tiny
from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import InputError, JevifyError
from jevify.evidence import cold
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.report import markdown, tables
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO: dict[str, Any] = {
    "name": "small",
    "kind": "decide",
    "model": "fake",
    "seed": 7,
    "repeats": 2,
    "cold": 2,
    "cases": [{"prefix_tokens": 50, "question_tokens": 20, "questions": 4}],
    "baseline": {"name": "independent", "executor": "independent"},
    "candidates": [{"name": "packed", "executor": "packed"}],
}


def bench(monkeypatch: pytest.MonkeyPatch, spawn: Any) -> dict[str, Any]:
    monkeypatch.setattr(cold, "spawn", spawn)
    fake = FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]})
    return run_benchmark(parse_scenario(SCENARIO), command="x", load=lambda _: FakeEngine(fake), clock=fake.clock)


def test_every_arm_starts_cold_then_with_the_caches_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    def spawn(task: Mapping[str, Any], caches: Path) -> dict[str, float]:
        left = (caches / "kernel").exists()
        (caches / "kernel").touch()
        seen.append((task["settings"]["executor"], left))
        assert (task["model"], len(task["questions"])) == ("fake", 4)
        times = dict.fromkeys(cold.TIMES, 10.0 * len(seen))
        return times | {"first_ms": 5.0 if left else 50.0}

    result = bench(monkeypatch, spawn)
    assert failures(result) == []
    both = [False, True]
    assert seen == [(name, left) for name in ("independent", "packed") for left in both * 2]
    (case,) = result["cases"]
    assert [found["first_ms"] for found in case["cold"][1]["empty"]] == [50.0, 50.0]
    # Warm samples hold nothing of them.
    assert case["arms"][1]["samples_ms"] == [2.0, 2.0]
    cells = tables(result)[-1].rows
    assert cells[0] == ["N=4 P=50 Q=20", "independent", "empty", "2", "20", "20", "50", "20"]
    assert cells[3] == ["", "packed", "left", "2", "70", "70", "5", "70"]


def test_a_process_that_fails_leaves_the_warm_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(task: Mapping[str, Any], caches: Path) -> dict[str, float]:
        if task["settings"]["executor"] == "packed":
            raise JevifyError("a fresh process ended with 1: no memory")
        return dict.fromkeys(cold.TIMES, 1.0)

    result = bench(monkeypatch, spawn)
    assert failures(result) == ["N=4 P=50 Q=20, packed, cold: a fresh process ended with 1: no memory"]
    assert "| failed | - |" in markdown(result)
    assert result["cases"][0]["arms"][1]["ratio"]["median"] == 4.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.model("qwen2").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def task(checkpoint: Path, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "model": str(checkpoint),
        "device": "cpu",
        "dtype": "float32",
        "rival": None,
        "settings": {"executor": "packed", "answer_encoding": "letters"},
        "context": "the box was torn",
        "questions": {"refund": {"type": "noul", "instructions": "Is the customer unhappy?"}},
    }
    return made | changes


def test_a_fresh_process_tells_its_times(checkpoint: Path, tmp_path: Path) -> None:
    times = cold.spawn(task(checkpoint), tmp_path)
    assert list(times) == list(cold.TIMES)
    assert all(value > 0 for value in times.values())
    # Python and torch take longer to import than a model of 100,000 values takes to answer.
    assert times["import_ms"] > times["second_ms"]
    json.dumps(times)


def test_why_a_process_failed_is_told(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(JevifyError, match=r"ended with 1: .*there is no folder|ended with 1: .*missing"):
        cold.spawn(task(tmp_path / "missing"), tmp_path)


@pytest.mark.parametrize("value", [-1, 101, True])
def test_numbers_of_processes_are_checked(value: Any) -> None:
    with pytest.raises(InputError, match=r"scenario.cold: .* is not a whole number from 0 to 100"):
        parse_scenario({**SCENARIO, "cold": value})
