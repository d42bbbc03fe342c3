"""A configured engine against the oracle, on a tiny model."""

import json

import pytest

import tiny
from jevify.decide import drift
from jevify.decide.executors.packed import PackedExecutor
from jevify.engine import DecisionEngine
from jevify.evidence.gates import load_gates
from jevify.evidence.validate.engine import validate_engine
from jevify.evidence.validate.quality import SAMPLE, read_sample
from jevify.evidence.validate.result import failed, markdown, validation

pytestmark = pytest.mark.cpu
GATE = load_gates().quality["float32"]


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    """One short context: what the probes are is tested elsewhere."""
    monkeypatch.setattr(drift, "CONTEXTS", drift.CONTEXTS[:1])


def validated(executor):
    engine = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", executor=executor)
    return validate_engine(engine, read_sample(SAMPLE, 3), GATE)


@pytest.mark.parametrize("executor", ["packed", "forked", "independent"])
def test_an_engine_that_is_right_passes(executor):
    found = validated(executor)
    assert [check for check in found["checks"] if not check["passed"]] == []
    cases = {case["name"]: case for case in found["cases"]}
    assert len(cases) == 8
    for case in cases.values():
        assert case["against_oracle"]["largest_difference"] < 1e-5
        assert (case["noise"] is None) == (case["name"] == "labelled sample")
    assert found["quality"]["engine"]["questions"] == found["quality"]["oracle"]["questions"] == 3
    json.dumps(found, allow_nan=False)


def test_an_engine_that_is_wrong_fails_by_name_and_lists_its_flips(monkeypatch):
    plain = PackedExecutor.run

    def run(self, plans, timer):
        return [[[-score for score in options] for options in branches] for branches in plain(self, plans, timer)]

    monkeypatch.setattr(PackedExecutor, "run", run)
    # The drift of so wrong a path would call everything a near tie.
    monkeypatch.setattr("jevify.engine.measure", lambda score, oracle: drift.Drift(0.0))
    found = validated("packed")
    wrong = [check["name"] for check in found["checks"] if not check["passed"]]
    assert {"agreement", "agreement outside near ties", "oracle.many branches"} <= set(wrong)
    flips = [flip for case in found["cases"] for flip in case["against_oracle"]["flips"]]
    assert flips
    assert not any(flip["near_tie"] for flip in flips)
    subject = {"model": "tiny", "executor": "packed", "device": "cpu", "dtype": "float32"}
    result = validation("jevify validate decide", subject=subject, tiny=[], engine=found)
    assert failed(result) == wrong
    told = markdown(result)
    assert "| agreement |" in told
    assert "FAIL" in told
    assert "no near tie" in told
