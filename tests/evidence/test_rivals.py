"""The padded batch of whole questions gives the answers of one question a forward."""

import pytest
import torch

import tiny
from jevify import Choice, Noul, Score
from jevify.engine import DecisionEngine
from jevify.evidence.rivals import WIDTH_STEP, BatchExecutor, rival_engine

pytestmark = pytest.mark.cpu

CONTEXT = "The parcel arrived two days late and the box was torn. " * 3
QUESTIONS = {
    "team": Choice(
        instructions="Which team?", criteria={"billing": "money", "technical support": None, "refund": None}
    ),
    "late": Noul(instructions="Is it late, or is it not late at all?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
}


def flat(decision):
    return [p for answer in decision["answers"].values() for p in answer["probabilities"].values()]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("encoding", ["letters", "labels"])
def test_a_padded_batch_answers_as_the_oracle_does_in_one_forward(family, encoding):
    engine = DecisionEngine(
        tiny.model(family), tiny.tokenizer(), name="tiny", answer_encoding=encoding, executor="independent"
    )
    rival = engine.with_executor(BatchExecutor)
    found = rival.decide(CONTEXT, QUESTIONS)
    assert flat(found) == pytest.approx(flat(engine.oracle(CONTEXT, QUESTIONS)), abs=2e-5)
    assert found["metadata"]["forward_calls"] == 1
    assert rival.counters()["independent"] == {"forward_calls": 1}
    # The engine it was made from is as it was.
    assert engine.decide(CONTEXT, QUESTIONS)["metadata"]["forward_calls"] >= 3


def test_the_compiled_rival_runs_fixed_shapes_through_the_compiled_forward(monkeypatch):
    asked, shapes = [], []

    def compile(forward, **options):
        asked.append(options)

        def run(input_ids, use_cache):
            shapes.append(tuple(input_ids.shape))
            return forward(input_ids=input_ids, use_cache=use_cache)

        return run

    monkeypatch.setattr(torch, "compile", compile)
    engine = DecisionEngine(
        tiny.model("qwen3"), tiny.tokenizer(), name="tiny", answer_encoding="letters", executor="independent"
    )
    rival = rival_engine("compiled-batch", engine)
    assert asked == [{"mode": "reduce-overhead", "dynamic": False}]
    wanted = flat(engine.oracle(CONTEXT, QUESTIONS))
    assert flat(rival.decide(CONTEXT, QUESTIONS)) == pytest.approx(wanted, abs=2e-5)
    rival.decide(f"{CONTEXT} So.", QUESTIONS)
    assert len(set(shapes)) == 1
    assert shapes[0][0] == 3
    assert shapes[0][1] % WIDTH_STEP == 0
    assert flat(rival_engine("padded-batch", engine).decide(CONTEXT, QUESTIONS)) == pytest.approx(wanted, abs=2e-5)
    assert len(shapes) == 2


def test_the_configuration_is_the_models():
    engine = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")
    assert engine.config.num_hidden_layers == 3
    assert isinstance(engine.config.rms_norm_eps, float)
    assert torch.is_inference_mode_enabled() is False
