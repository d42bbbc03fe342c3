"""Engines with fused kernels: the same answers, counted launches, and nothing left on the shared model."""

import threading

import pytest
import torch

import tiny
from jevify import Choice, Noul
from jevify.accel.ops import MODULE_KERNELS, triton_runtime
from jevify.engine import DecisionEngine
from jevify.errors import SettingError

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]
CONTEXT = "The parcel arrived two days late and the box was torn."
QUESTIONS = {
    "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical support": None}),
    "late": Noul(instructions="Is it late?"),
}


def flat(decision):
    return [p for answer in decision["answers"].values() for p in answer["probabilities"].values()]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("executor", ["forked", "packed"])
def test_every_family_answers_as_the_oracle_does(family, executor):
    # Labels are paths of several tokens: batches of leaves in forked, segments two deep in packed.
    plain = DecisionEngine(tiny.model(family), tiny.tokenizer(), name="tiny", answer_encoding="labels")
    engine = plain.with_settings(executor=executor, fused_kernels=MODULE_KERNELS, strict=True)
    decision = engine.decide(CONTEXT, QUESTIONS)
    assert flat(decision) == pytest.approx(flat(plain.oracle(CONTEXT, QUESTIONS)), abs=1e-5)
    active = decision["metadata"]["optimizations"]
    assert active["fused_kernels"] == list(MODULE_KERNELS)
    forwards = decision["metadata"]["forward_calls"]
    assert active["counters"]["kernel_launches"] == {
        "rmsnorm": forwards,
        "swiglu": 3 * forwards,
        "rope": 3 * forwards,
        "residual_norm": 6 * forwards,
    }
    assert engine.counters()["kernel_launches"] == active["counters"]["kernel_launches"]


@pytest.mark.parametrize("kernel", MODULE_KERNELS)
@pytest.mark.parametrize("executor", ["forked", "packed"])
def test_each_kernel_alone(kernel, executor):
    plain = DecisionEngine(tiny.model("qwen3"), tiny.tokenizer(), name="tiny", executor=executor)
    engine = plain.with_settings(fused_kernels=(kernel,))
    assert flat(engine.decide(CONTEXT, QUESTIONS)) == pytest.approx(flat(plain.decide(CONTEXT, QUESTIONS)), abs=1e-5)
    assert list(engine.counters()["kernel_launches"]) == [kernel]
    assert engine.counters()["kernel_launches"][kernel] > 0


@pytest.mark.parametrize("executor", ["forked", "packed"])
def test_low_precision_answers_stay(executor):
    plain = DecisionEngine(tiny.model("qwen3", dtype=torch.bfloat16), tiny.tokenizer(), name="tiny", executor=executor)
    fused = plain.with_settings(fused_kernels=MODULE_KERNELS)
    assert flat(fused.decide(CONTEXT, QUESTIONS)) == pytest.approx(flat(plain.decide(CONTEXT, QUESTIONS)), abs=1e-3)


def test_kernels_are_on_the_model_only_while_their_engine_runs():
    plain = DecisionEngine(tiny.model("llama"), tiny.tokenizer(), name="tiny")
    wanted = flat(plain.decide(CONTEXT, QUESTIONS))
    fused = plain.with_settings(fused_kernels=MODULE_KERNELS)
    other = plain.with_settings(fused_kernels=("swiglu",))
    oracle = flat(plain.oracle(CONTEXT, QUESTIONS))
    results = {}

    def work(name, engine):
        results[name] = [flat(engine.decide(CONTEXT, QUESTIONS)) for _ in range(3)]

    threads = [
        threading.Thread(target=work, args=item) for item in {"plain": plain, "fused": fused, "other": other}.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["plain"] == [wanted] * 3
    for name in ("fused", "other"):
        assert results[name] == [pytest.approx(wanted, abs=1e-5)] * 3
    assert other.counters()["kernel_launches"] == {"swiglu": 3 * 3 * 2}
    assert plain.counters()["kernel_launches"] == {}
    before = fused.counters()["kernel_launches"]
    assert flat(fused.decide(CONTEXT, QUESTIONS, mode="independent")) == pytest.approx(oracle, abs=1e-6)
    assert flat(fused.oracle(CONTEXT, QUESTIONS)) == oracle
    assert fused.counters()["kernel_launches"] == before
    assert not [module for module in plain._model.modules() if "forward" in vars(module)]


def test_what_cannot_run_is_refused_at_construction(monkeypatch):
    model = tiny.model("qwen3", dtype=torch.float64)
    with pytest.raises(SettingError, match=r"fused kernel rope: torch.float64 is not supported"):
        DecisionEngine(model, tiny.tokenizer(), name="tiny", fused_kernels=("rope",))
    engine = DecisionEngine(tiny.model("llama"), tiny.tokenizer(), name="tiny")
    with pytest.raises(SettingError, match="--fused-kernels rope has no effect on the independent executor"):
        engine.with_settings(executor="independent", fused_kernels=("rope",))
    monkeypatch.setattr(triton_runtime, "INTERPRETED", False)
    with pytest.raises(SettingError, match="--fused-kernels rope: kernels need a CUDA device"):
        engine.with_settings(fused_kernels=("rope",))
