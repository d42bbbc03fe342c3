"""Many requests in one call, from an engine that does only what the test says."""

from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import InputError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.floor import Machine
from jevify.evidence.report import markdown, tables
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO: dict[str, Any] = {
    "name": "many",
    "kind": "throughput",
    "model": "fake",
    "seed": 7,
    "warmup": 1,
    "repeats": 3,
    "requests": 5,
    "case": {"prefix_tokens": 50, "question_tokens": 20, "questions": 4},
    "target": 480,
    "references": [{"name": "another engine", "requests_per_second": 355, "source": "one GPU"}],
    "candidates": [{"name": "forked", "executor": "forked"}, {"name": "packed", "executor": "packed"}],
}


def bench(model: FakeModel, **changes: Any) -> dict[str, Any]:
    scenario = parse_scenario({**SCENARIO, **changes})
    return run_benchmark(scenario, command="x", load=lambda _: FakeEngine(model), clock=model.clock)


def fake(**changes: Any) -> FakeModel:
    # A call of five requests: 20 ms forked; packed 50 ms of warm-up, then 10.
    model = FakeModel(FakeClock(), {"forked": [0.004], "packed": [0.010] * 5 + [0.002]})
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result["cases"][0]["arms"]}


def test_requests_a_second_are_those_of_the_median_call() -> None:
    result = bench(fake())
    packed = rows(result)["packed"]
    assert failures(result) == []
    assert (packed["warmup_ms"], packed["samples_ms"]) == ([50.0], [10.0] * 3)
    assert packed["requests_per_second"] == 500.0
    assert rows(result)["forked"]["requests_per_second"] == 250.0
    assert packed["ratio"]["median"] == 2.0
    assert rows(result)["forked"]["ratio"] is None
    (target,) = result["cases"][0]["targets"]["figures"]
    assert (target["measured"], target["met"]) == (500.0, True)


def test_every_round_has_contexts_of_its_own_of_the_same_size() -> None:
    model = fake()
    result = bench(model)
    contexts = [context for executor, context in model.log if executor == "packed"]
    assert contexts == [context for executor, context in model.log if executor == "forked"]
    assert len(set(contexts)) == 20
    assert len({tuple(sorted(context.split())) for context in contexts}) == 5
    assert result["cases"][0]["requests"] == {
        "number": 5,
        "shared_prefix_tokens": [50, 50],
        "full_question_tokens": [70, 70],
        "exact": True,
    }


def test_the_floor_is_that_of_all_requests_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jevify.evidence.kinds.throughput.run.machine_of", lambda device: Machine("tiny", 1e12, 1e9))
    result = bench(fake(meddle=lambda executor, decision, log: decision["metadata"].update(dtype="bfloat16")))
    visible = 50 * 51 // 2 + 4 * (20 * 50 + 20 * 21 // 2)
    milliseconds = 5 * (2 * 73_728 * 130 + 4 * 2 * 4 * 16 * visible) / 1e6
    floor = result["cases"][0]["floor"]
    assert floor["ms"] == pytest.approx(milliseconds, abs=1e-4)
    assert floor["requests_per_second"] == pytest.approx(5e3 / milliseconds, abs=0.1)
    assert "the floor on tiny is" in markdown(result)


def test_a_failing_arm_leaves_the_others() -> None:
    def fail(executor: str, decision: dict[str, Any], log: Any) -> None:
        if executor == "packed":
            decision["metadata"]["questions"]["question_2"]["tokens"] = 3

    result = bench(fake(meddle=fail))
    assert failures(result) == [
        "5 requests at once, N=4 P=50 Q=20, packed: warm-up: questions of [70, 3, 70, 70] tokens ran, but "
        "[70, 70, 70, 70] were measured"
    ]
    assert rows(result)["forked"]["requests_per_second"] == 250.0
    assert result["cases"][0]["targets"]["figures"][0]["met"] is None


def test_an_interrupt_keeps_the_rounds_that_are_done() -> None:
    def interrupt(executor: str, decision: dict[str, Any], log: Any) -> None:
        # Two rounds of ten decisions, and half of a third.
        if len(log) > 25:
            raise KeyboardInterrupt

    result = bench(fake(meddle=interrupt))
    assert result["interrupted"]
    assert rows(result)["forked"]["samples_ms"] == [20.0, 20.0]
    assert rows(result)["packed"]["samples_ms"] == [10.0]
    assert rows(result)["packed"]["ratio"]["pairs"] == 1


def test_the_tables_hold_arms_references_and_the_target() -> None:
    arms, references, targets = tables(bench(fake()))
    assert arms.rows[1] == ["", "packed", "500.0", "10.0", "10.0", "10.0", "2.00", "-", "-"]
    assert references.rows == [["one GPU", "another engine", "355"]]
    assert targets.rows == [
        ["5 requests at once, N=4 P=50 Q=20, packed", "requests_per_second", "480", "500.00", "met"]
    ]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("requests", 0, "scenario.requests: 0 is not a whole number"),
        ("target", -1, "scenario.target: -1 is not a number above 0"),
        ("target_arm", "fast", "scenario.target_arm: 'fast' is no arm; the arms are forked, packed"),
        ("references", [{"name": "x", "requests_per_second": 5}], r"references\[0\].source: missing"),
        ("case", {"prefix_tokens": 5}, "scenario.case.question_tokens: missing"),
        ("candidates", [], "scenario.candidates: give a list"),
        ("fresh_context", True, "scenario.fresh_context: unknown field"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_scenario({**SCENARIO, field: value})
