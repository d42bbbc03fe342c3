"""Near ties on a GPU: low precision, kernels and graphs drift; stable labels are the oracle's in every batch."""

import pytest
import torch

import tiny
from jevify import Choice, Noul, Score
from jevify.accel.ops import MODULE_KERNELS
from jevify.decide.answers import top_label
from jevify.engine import DecisionEngine

pytestmark = pytest.mark.gpu
CONTEXTS = [f"Parcel number {index} arrived two days late and the box was torn." for index in range(6)]
TIE = {"team": Choice(instructions="Which team?", criteria=["A", "B"])}
NEIGHBOURS = {
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
}


@pytest.fixture(scope="module")
def model():
    """The rows of the letters A and B differ in one small number, so that A and B are near ties everywhere."""
    made = tiny.model("qwen2", hidden_size=96, num_attention_heads=3, num_key_value_heads=1, dtype=torch.bfloat16)
    made = made.to("cuda")
    engine = DecisionEngine(made, tiny.tokenizer(), name="tiny")
    (a,), (b,) = engine.prepare(CONTEXTS[0], TIE).plan.branches[0].answers
    head = made.get_output_embeddings().weight
    head[b] = head[a]
    head[b, 0] += 2**-13
    engine.clear_optimization_cache()
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"executor": "forked"},
        {"executor": "packed"},
        {"executor": "packed", "fused_kernels": MODULE_KERNELS},
        {"executor": "packed", "fused_kernels": MODULE_KERNELS, "cuda_graphs": True},
        {"executor": "independent"},
    ],
    ids=["forked", "packed", "kernels", "graphs", "independent"],
)
def test_stable_labels_do_not_depend_on_the_batch(model, settings):
    torch.backends.cuda.matmul.allow_tf32 = False
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny", stable=True, **settings)
    engine.warmup()
    for context in CONTEXTS:
        wanted = engine.oracle(context, {**TIE, **NEIGHBOURS})["answers"]
        batches = [
            engine.decide(context, TIE),
            engine.decide(context, {**NEIGHBOURS, **TIE}),
            engine.decide_many([(context, TIE), *((other, NEIGHBOURS) for other in CONTEXTS)])[0],
        ]
        for found in batches:
            assert found["metadata"]["drift"]["status"] == "measured"
            assert found["metadata"]["questions"]["team"]["near_tie"] is True
            assert found["metadata"]["questions"]["team"]["settled"] is True
            for name, answer in found["answers"].items():
                assert top_label(answer["probabilities"]) == top_label(wanted[name]["probabilities"])


def test_measuring_evicts_no_graph_and_keeps_no_memory(model):
    settings = {"executor": "packed", "cuda_graphs": True}
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny", **settings)
    engine.decide(CONTEXTS[0], NEIGHBOURS)
    before = engine.counters()["packed"]["graphs"]
    assert (before["captures"], before["resident"]) == (1, 1)
    drift = engine._measure_drift("packed")
    assert drift.nats > 0
    assert engine.counters()["packed"]["graphs"] == before
    held = torch.cuda.memory_allocated()
    engine._measure_drift("packed")
    assert torch.cuda.memory_allocated() == held
    engine.decide(CONTEXTS[0], NEIGHBOURS)
    after = engine.counters()["packed"]["graphs"]
    assert (after["captures"], after["replays"]) == (1, 2)
