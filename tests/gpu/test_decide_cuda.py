"""The executors on a GPU: parity in every dtype, determinism, memory that is given back."""

import pytest
import torch

import tiny
from jevify import Choice, Noul, Score
from jevify.engine import DecisionEngine

pytestmark = pytest.mark.gpu
CONTEXT = "The parcel arrived two days late and the box was torn. " * 4
QUESTIONS = {
    "team": Choice(
        instructions="Which team?", criteria={"billing": "money", "technical support": None, "refund": None}
    ),
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
}
# How far low precision may move a probability on these tiny models, by dtype.
DRIFT = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def flat(decision):
    return [p for answer in decision["answers"].values() for p in answer["probabilities"].values()]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", DRIFT, ids=str)
@pytest.mark.parametrize("encoding", ["letters", "labels"])
def test_every_executor_agrees_with_the_fp32_oracle(family, dtype, encoding):
    torch.backends.cuda.matmul.allow_tf32 = False
    model = tiny.model(family, dtype=dtype).to("cuda")
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny", answer_encoding=encoding)
    wanted = flat(engine.oracle(CONTEXT, QUESTIONS))
    for settings in (
        {},
        {"executor": "packed"},
        {"executor": "packed", "token_budget": 64},
        {"executor": "independent"},
    ):
        found = engine.with_settings(**settings).decide(CONTEXT, QUESTIONS)
        assert found["metadata"]["device"] == "cuda:0"
        assert flat(found) == pytest.approx(wanted, abs=DRIFT[dtype])


def test_a_repeated_request_repeats_its_bits():
    engine = DecisionEngine(tiny.model("qwen2", dtype=torch.bfloat16).to("cuda"), tiny.tokenizer(), name="tiny")
    for settings in ({}, {"executor": "packed"}):
        other = engine.with_settings(**settings)
        first = flat(other.decide(CONTEXT, QUESTIONS))
        other.decide("Something else in between.", QUESTIONS)
        assert flat(other.decide(CONTEXT, QUESTIONS)) == first


def test_no_context_stays_on_the_device():
    engine = DecisionEngine(tiny.model("llama").to("cuda"), tiny.tokenizer(), name="tiny", executor="packed")
    engine.warmup(CONTEXT, QUESTIONS)
    before = torch.cuda.memory_allocated()
    for size in range(1, 9):
        engine.decide(CONTEXT * size, QUESTIONS)
    assert torch.cuda.memory_allocated() == before


def test_auto_dtype_is_bf16_where_the_gpu_has_it(tmp_path):
    tiny.model("qwen2").save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    engine = DecisionEngine.from_pretrained(str(tmp_path), local_files_only=True)
    wanted = "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16"
    assert engine.decide(CONTEXT, QUESTIONS)["metadata"]["dtype"] == wanted
