"""Interrupted runs go on where they stopped."""

import json
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import InputError
from jevify.evidence.bench import run_benchmark
from jevify.evidence.resume import rest_of
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO: dict[str, Any] = {
    "name": "small",
    "kind": "decide",
    "model": "fake",
    "seed": 7,
    "repeats": 2,
    "cases": [{"prefix_tokens": 50, "question_tokens": 20, "questions": count} for count in (4, 2, 3)],
    "baseline": {"name": "independent", "executor": "independent"},
    "candidates": [{"name": "packed", "executor": "packed"}],
}


class Killed(BaseException):
    """What no runner catches."""


def bench(meddle: Any = lambda executor, decision, log: None, changes: Any = None, **options: Any) -> Any:
    fake = FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]}, meddle=meddle)
    scenario = parse_scenario({**SCENARIO, **(changes or {})})
    result = run_benchmark(scenario, command="x", load=lambda _: FakeEngine(fake), clock=fake.clock, **options)
    return json.loads(json.dumps(result)), fake


def stop_in_second_case(error: type[BaseException]) -> Any:
    def meddle(executor: str, decision: dict[str, Any], log: Any) -> None:
        if len(decision["answers"]) == 2 and executor == "packed":
            raise error

    return meddle


def sizes(result: dict[str, Any]) -> list[int]:
    return [case["case"]["questions"] for case in result["cases"]]


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    memory = {"memory_bytes"}
    cases = [
        {**case, "arms": [{key: row[key] for key in row.keys() - memory} for row in case["arms"]]}
        for case in result["cases"]
    ]
    return {"cases": cases, "interrupted": result["interrupted"], "scenario": result["scenario"]}


def test_a_killed_run_loses_the_case_at_hand_alone() -> None:
    stored: list[dict[str, Any]] = []
    with pytest.raises(Killed):
        bench(stop_in_second_case(Killed), store=lambda result: stored.append(json.loads(json.dumps(result))))
    (left,) = stored
    assert left["interrupted"]
    assert sizes(left) == [4]
    again, fake = bench(stored=left)
    assert sizes(again) == [4, 2, 3]
    assert len(again["resumed"]) == 1
    # Four questions of the finished case were not asked again.
    assert again["cases"][0] == left["cases"][0]
    assert len(fake.log) == 2 * 2 * (1 + 2 + 1)
    assert without_time(again) == without_time(bench()[0])


def test_an_interrupted_case_runs_again() -> None:
    stopped, _ = bench(stop_in_second_case(KeyboardInterrupt))
    assert stopped["cases"][1]["interrupted"]
    again, _ = bench(stored=stopped)
    assert without_time(again) == without_time(bench()[0])
    done, fake = bench(stored=again)
    assert fake.log == []
    assert not done["interrupted"]
    assert done["cases"] == again["cases"]


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("scenario", {"repeats": 3}, "another scenario;"),
        ("environment", {"source_sha256": "0"}, "another source_sha256;"),
        ("environment", {"cpu": "abacus", "gpus": ["H200"]}, "another cpu, gpus;"),
    ],
)
def test_another_run_is_not_gone_on_with(where: str, value: dict[str, Any], message: str) -> None:
    stopped, _ = bench(stop_in_second_case(KeyboardInterrupt))
    stopped = {**stopped, where: {**stopped[where], **value}}
    with pytest.raises(InputError, match=message):
        bench(stored=stopped)


def test_a_kind_of_one_case_starts_again_or_is_done() -> None:
    scenario = parse_scenario(
        {
            "name": "map",
            "kind": "crossover",
            "seed": 1,
            "repeats": 2,
            "heads": [4, 2, 16],
            "prefix": [4],
            "branches": [1],
            "rows": [2],
        }
    )
    assert rest_of(scenario, 0) is scenario
    assert rest_of(scenario, 1) is None
