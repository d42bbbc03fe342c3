"""Varied requests: hits, buckets, memory, capture cost, from an engine that does only what the test says."""

import json
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel, word_tokens
from jevify.errors import InputError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.kinds.varied.summary import Sample, Spread, break_even, spreads
from jevify.evidence.report import markdown, tables
from jevify.evidence.scenario import parse_scenario
from jevify.evidence.traffic import Traffic, requests_of

pytestmark = pytest.mark.cpu

MIB = 2**20
SCENARIO: dict[str, Any] = {
    "name": "varied",
    "kind": "varied",
    "model": "fake",
    "seed": 7,
    "requests": 20,
    "warmup": 2,
    "repeats": 3,
    "words": [5, 40],
    "questions": [1, 4],
    "rubrics": 4,
    "target_arm": "graphs",
    "targets": {"hit_rate": 0.95, "spread": 1.3, "budget_share": 1, "growth_mib": 1},
    "candidates": [
        {"name": "eager", "executor": "forked", "requests": 5, "warmup": 1},
        {"name": "graphs", "executor": "packed", "cuda_graphs": True, "graph_budget_mb": 100, "grows": True},
    ],
}


def counted(executor: str, decisions: int) -> dict[str, Any]:
    """The packed engine captures at its first decision, and once more at its fourth: the second timed one."""
    if executor != "packed":
        return {executor: {}}
    captures = (decisions > 0) + (decisions > 3)
    graphs = {
        "captures": captures,
        "replays": decisions,
        "fallbacks": 0,
        "evictions": 0,
        "retained_bytes": 30 * MIB * captures,
        "capture_ms": 40.0 * captures,
    }
    return {"packed": {"graphs": graphs, "last_graph_rows": 64 if decisions % 4 else 128}}


def fake(**changes: Any) -> FakeModel:
    model = FakeModel(FakeClock(), {"forked": [0.020], "packed": [0.050, 0.006, 0.006, 0.046, 0.004]})
    model.counted = counted
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def bench(model: FakeModel, **changes: Any) -> dict[str, Any]:
    scenario = parse_scenario({**SCENARIO, **changes})
    return run_benchmark(scenario, command="x", load=lambda _: FakeEngine(model), clock=model.clock)


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result["cases"][0]["arms"]}


def test_hits_are_requests_that_neither_captured_nor_fell_back() -> None:
    result = bench(fake())
    graphs = rows(result)["graphs"]
    assert failures(result) == []
    # After two of warm-up: a replay, a capture, then replays.
    assert graphs["samples_ms"] == [6.0, 46.0] + [4.0] * 18
    assert graphs["graphs"] == {"captures": 1, "replays": 20, "fallbacks": 0, "evictions": 0}
    assert graphs["hit_rate"] == 0.95
    assert rows(result)["eager"]["hit_rate"] is None
    assert rows(result)["eager"]["requests"] == 5


def test_captures_cost_what_replays_must_earn_back() -> None:
    graphs = rows(bench(fake()))["graphs"]
    assert graphs["capture_ms"] == 40.0
    # The eager arm ran five requests of 20 ms; of them 6, 4, 4, 4 ms were replays.
    assert graphs["break_even"] == 40 / (20 - 4)


def test_memory_is_the_most_retained_beside_the_budget() -> None:
    graphs = rows(bench(fake()))["graphs"]
    assert (graphs["retained_bytes"], graphs["budget_bytes"]) == (60 * MIB, 100 * MIB)
    assert [entry["requests"] for entry in graphs["passes"]] == [20, 20, 20]
    assert [entry["median_ms"] for entry in graphs["passes"]] == [4.0, 4.0, 4.0]
    assert graphs["driver_bytes"] == {"start": None, "first_pass": None, "end": None}


def test_growth_is_what_the_driver_counts_after_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([0, 0, 100 * MIB, 150 * MIB, 151 * MIB, 152 * MIB])
    monkeypatch.setattr("jevify.evidence.kinds.varied.run.driver_bytes", lambda device: next(used))
    result = bench(fake())
    assert rows(result)["graphs"]["driver_bytes"] == {"start": 100 * MIB, "first_pass": 150 * MIB, "end": 152 * MIB}
    figures = {entry["figure"]: entry for entry in result["cases"][0]["targets"]["figures"]}
    assert (figures["growth_mib"]["measured"], figures["growth_mib"]["short_by"]) == (2.0, 1.0)
    assert (figures["hit_rate"]["measured"], figures["hit_rate"]["met"]) == (0.95, True)
    assert (figures["budget_share"]["measured"], figures["budget_share"]["met"]) == (0.6, True)
    assert "100 / 150 / 152" in markdown(result)


def test_buckets_tell_their_spread_and_small_ones_nothing() -> None:
    samples = [Sample(float(ms), 64, True) for ms in range(1, 12)] + [Sample(1.0, 128, True)] * 9
    # Position 0.9 * 10 = 9: the tenth of eleven.
    assert spreads([*samples, Sample(1.0, None, False)]) == [Spread(64, 11, 6.0, round(10 / 6, 4))]
    graphs = rows(bench(fake()))["graphs"]
    assert [(bucket["rows"], bucket["requests"]) for bucket in graphs["buckets"]] == [(64, 15)]


def test_nothing_breaks_even_without_a_replay_or_a_gain() -> None:
    slow, fast = Sample(4.0, None, False), Sample(6.0, 64, True)
    assert break_even(10, [slow], [fast]) is None
    assert break_even(10, [], [fast]) is None
    assert break_even(10, [slow], [Sample(1.0, 64, False)]) is None
    assert break_even(9, [slow], [Sample(1.0, 64, True)]) == 3


def test_arms_run_the_same_requests_after_other_ones_and_are_cleared() -> None:
    model = fake()
    bench(model)
    eager = [context for executor, context in model.log if executor == "forked"]
    graphs = [context for executor, context in model.log if executor == "packed"]
    assert model.cleared == ["forked", "packed"]
    assert eager[1:6] == graphs[2:7]
    assert set(graphs[:2]).isdisjoint(graphs[2:22])
    assert sorted(graphs[22:42]) == sorted(graphs[2:22])
    assert graphs[22:42] != graphs[2:22]


def test_an_arm_at_its_time_limit_says_how_far_it_came() -> None:
    result = bench(fake(), arm_seconds=0.19)
    # 56 ms of warm-up, 6 and 46, then 4 at a time until 190 ms have passed.
    assert rows(result)["graphs"]["stopped"]
    assert rows(result)["graphs"]["requests"] == 20
    assert len(rows(result)["graphs"]["passes"]) == 2
    assert "graphs: stopped at the time limit after" in markdown(result)
    assert not rows(result)["eager"]["stopped"]


def test_a_failing_arm_leaves_the_others() -> None:
    def fail(executor: str, decision: dict[str, Any], log: Any) -> None:
        if executor == "packed" and len(log) > 10:
            raise RuntimeError("out of luck")

    result = bench(fake(meddle=fail))
    assert failures(result) == ["varied requests, graphs: run: RuntimeError: out of luck"]
    assert rows(result)["eager"]["median_ms"] == 20.0
    assert result["cases"][0]["targets"]["figures"][0]["met"] is None
    json.dumps(result)


def test_an_interrupt_keeps_a_finished_first_pass() -> None:
    def interrupt(executor: str, decision: dict[str, Any], log: Any) -> None:
        if executor == "packed" and len(log) > 40:
            raise KeyboardInterrupt

    result = bench(fake(meddle=interrupt))
    assert result["interrupted"]
    assert rows(result)["graphs"]["requests"] == 20
    assert len(rows(result)["graphs"]["passes"]) == 1


def test_the_tables_hold_arms_buckets_and_targets() -> None:
    arms, buckets, targets = tables(bench(fake()))
    assert arms.rows[1][:9] == ["", "graphs", "20", "4.0", "4.2", "95.0%", "1", "0", "0"]
    assert arms.rows[1][10:] == ["40.0", "2.5", "60 of 100", "-"]
    assert buckets.rows[0][:3] == ["graphs", "64", "15"]
    assert targets.rows[0] == ["varied requests, graphs", "hit_rate", "0.95", "0.95", "met"]


def test_requests_are_within_their_bounds_of_a_few_sets_and_repeatable() -> None:
    traffic = Traffic((20, 60), (1, 12), 6)
    requests = requests_of(traffic, number=200, seed=3, sample="a")
    assert requests == requests_of(traffic, number=200, seed=3, sample="a")
    lengths = [len(context.split()) for context, _ in requests]
    assert (min(lengths), max(lengths)) == (20, 60)
    assert {len(questions) for _, questions in requests} == {1, 3, 5, 8, 10, 12}
    other = requests_of(traffic, number=200, seed=3, sample="b")
    assert {context for context, _ in other}.isdisjoint(context for context, _ in requests)
    assert {json.dumps(questions) for _, questions in other} == {json.dumps(questions) for _, questions in requests}
    assert word_tokens(requests[0][0]) >= 20


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("words", [5], r"scenario.words: give the least and the most, not \[5\]"),
        ("words", [9, 5], r"scenario.words: give the least and the most"),
        ("questions", [0, 5], r"scenario.questions.\[0\]: 0 is not a whole number from 1 to 4,096"),
        ("requests", 0, "scenario.requests: 0 is not a whole number"),
        ("arm_seconds", 0, "scenario.arm_seconds: 0 is not a number above 0"),
        ("target_arm", "fast", "scenario.target_arm: name the arm of the targets, one of eager, graphs"),
        ("targets", {"hits": 1}, "scenario.targets.hits: unknown field"),
        ("rubrics", 0, "scenario.rubrics: 0 is not"),
        ("growth", 5, "scenario.growth: unknown field"),
        ("candidates", [{"name": "a", "executor": "packed", "grows": 1}], r"candidates\[0\].grows: 1 is not true"),
        ("candidates", [{"name": "a", "executor": "packed", "requests": 0}], r"candidates\[0\].requests: 0 is not"),
        ("candidates", [{"name": "a", "executor": "packed"}] * 2, r"candidates\[1\].name: 'a' is taken"),
        ("candidates", [{"name": "a"}], r"candidates\[0\].executor: name the executor"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_scenario({**SCENARIO, field: value})
