"""Every kind that decides, on a real engine of a tiny model: the runners and the engine speak one language."""

from functools import partial
from typing import Any

import pytest

import tiny
from jevify.engine import DecisionEngine
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.breakdown import Kernel
from jevify.evidence.kinds.profile import run as profile
from jevify.evidence.report import markdown
from jevify.evidence.scenario import parse_scenario
from jevify.evidence.store import json_text

pytestmark = pytest.mark.cpu

COMMON: dict[str, Any] = {"name": "tiny", "model": "tiny", "seed": 3, "warmup": 1, "repeats": 2, "device": "cpu"}
CASE = {"prefix_tokens": 60, "question_tokens": 50, "questions": 3}
PACKED = {"name": "packed", "executor": "packed"}
FORKED = {"name": "forked", "executor": "forked"}
SCENARIOS: dict[str, dict[str, Any]] = {
    "decide": {
        "cases": [{**CASE, "targets": {"decide_ms": 1e6}}],
        "baseline": {"executor": "independent"},
        "candidates": [FORKED, PACKED, {"name": "batch", "executor": "independent", "rival": "padded-batch"}],
        "noise_floor": True,
    },
    "varied": {
        "requests": 4,
        "words": [2, 9],
        "questions": [1, 3],
        "rubrics": 2,
        "candidates": [FORKED, {**PACKED, "grows": True}],
    },
    "throughput": {"requests": 3, "case": CASE, "candidates": [FORKED, PACKED]},
    "profile": {"cases": [CASE], "candidates": [PACKED]},
}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_kind_runs_on_a_real_engine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def profiled(run: Any, device: str, trace: Any) -> list[Kernel]:
        run()
        return [Kernel("_attend", 1.0)]

    monkeypatch.setattr(profile, "profiled", profiled)
    engine = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", answer_encoding="letters")
    monkeypatch.setattr(engine, "with_settings", partial(engine.with_settings, answer_encoding="letters"))
    result = run_benchmark(
        parse_scenario({**COMMON, "kind": kind, **SCENARIOS[kind]}), command="x", load=lambda scenario: engine
    )
    assert failures(result) == []
    (case,) = result["cases"]
    assert [row["name"] for row in case["arms"]][-1] in ("packed", "batch")
    assert markdown(result)
    assert json_text(result)
    if kind == "decide":
        assert case["noise"]["quality"]["agreement"] == 1
        assert all(row["quality"]["largest_difference"] < 1e-4 for row in case["arms"])


def test_a_profile_takes_questions_as_long_as_its_first_way_does(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", max_question_tokens=100)
    long = {**PACKED, "max_question_tokens": 2000, "answer_encoding": "letters"}
    data = {"cases": [{**CASE, "prefix_tokens": 200}], "candidates": [long], "kernels": False}
    scenario = parse_scenario({**COMMON, "kind": "profile", **data})
    result = run_benchmark(scenario, command="x", load=lambda scenario: engine)
    assert failures(result) == []
    assert result["cases"][0]["requests"]["full_question_tokens"][1] > 100
