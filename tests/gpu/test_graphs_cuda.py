"""The graph pool: replay with changed inputs, bounds, eviction, fallback, other threads."""

import subprocess
import sys
import threading

import pytest
import torch

import tiny
from jevify import Choice, Noul
from jevify.accel.graphs import CaptureSpace, GraphPool
from jevify.engine import DecisionEngine
from jevify.errors import SettingError

pytestmark = pytest.mark.gpu
QUESTIONS = {
    "team": Choice(
        instructions="Which team?", criteria={"billing": "money", "technical support": None, "refund": None}
    ),
    "late": Noul(instructions="Is it late?"),
}
MIB = 2**20


def flat(decision):
    return [p for answer in decision["answers"].values() for p in answer["probabilities"].values()]


@pytest.fixture
def pool():
    return GraphPool(CaptureSpace(torch.device("cuda", 0)), max_graphs=2, budget_bytes=64 * MIB)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32).pin_memory()


def test_replays_read_fresh_inputs(pool):
    for values in ((1, 2), (3, 4), (5, 6)):
        found = pool.run("square", [numbers(*values)], lambda x: x * x, estimate_bytes=0)
        assert found.tolist() == [value * value for value in values]
    counters = pool.counters()
    assert (counters["captures"], counters["replays"], counters["fallbacks"]) == (1, 3, 0)


def test_the_least_recently_used_goes_first(pool):
    for key in ("a", "b", "a", "c", "a", "b"):
        pool.run(key, [numbers(1)], lambda x: x + 1, estimate_bytes=0)
    counters = pool.counters()
    assert (counters["captures"], counters["evictions"], counters["resident"]) == (4, 2, 2)


def test_an_estimate_over_the_budget_falls_back_and_is_remembered(pool):
    for _ in range(2):
        assert pool.run("big", [numbers(1)], lambda x: x, estimate_bytes=65 * MIB) is None
    assert pool.counters()["fallbacks"] == 2
    assert "exceeds the budget" in pool.counters()["last_fallback"]


SYNCHRONIZES = """
import torch
from jevify.accel.graphs import CaptureSpace, GraphPool
pool = GraphPool(CaptureSpace(torch.device("cuda", 0)), max_graphs=2, budget_bytes=2**26)
one = torch.ones(1, dtype=torch.int32).pin_memory()
for _ in range(2):
    assert pool.run("bad", [one], lambda x: x * int(x.sum().item()), estimate_bytes=0) is None
assert pool.counters()["captures"] == 0
assert pool.counters()["fallbacks"] == 2
assert "capture" in pool.counters()["last_fallback"]
assert (torch.ones(4, device="cuda") * 2).sum().item() == 8
"""


def test_a_body_that_synchronizes_falls_back_and_is_remembered():
    """In a process of its own: a broken capture leaves PyTorch's random generator unusable."""
    subprocess.run([sys.executable, "-c", SYNCHRONIZES], check=True)


def test_a_graph_that_retains_too_much_is_dropped(pool):
    def body(x):
        return torch.ones(40 * MIB, device="cuda").sum() + x

    assert pool.run("large", [numbers(1)], body, estimate_bytes=0) is None
    assert "retained" in pool.counters()["last_fallback"]
    assert pool.counters()["resident"] == 0


def test_capture_survives_other_threads_using_the_device(pool):
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            torch.ones(1000, device="cuda").sum().item()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for key in range(20):
            assert pool.run(key, [numbers(key)], lambda x: x + 1, estimate_bytes=0).tolist() == [key + 1]
    finally:
        stop.set()
        thread.join()
    assert pool.counters()["fallbacks"] == 0


def test_deleting_one_graph_leaves_the_others_right(pool):
    weight = torch.randn(256, 256, device="cuda")
    for key in ("a", "b", "c", "b", "d", "b"):
        found = pool.run(key, [numbers(3)], lambda x: (weight * x).mm(weight).sum(0), estimate_bytes=0).clone()
        torch.testing.assert_close(found, (weight * 3).mm(weight).sum(0), atol=1e-3, rtol=1e-4)


WAYS = [
    ("packed", {"shared_attention": "off"}),
    ("packed", {}),
    ("packed", {"graph_keys": "bucketed", "max_graphs": 16}),
    ("forked", {"shared_attention": "off"}),
    ("forked", {"shared_attention": "on", "fused_kernels": ("rmsnorm", "swiglu", "rope", "residual_norm")}),
    ("forked", {"shared_attention": "on", "specialize_short": False}),
]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("encoding", ["letters", "labels"])
@pytest.mark.parametrize(("executor", "changes"), WAYS)
def test_replayed_decisions_equal_eager_ones(family, encoding, executor, changes):
    # In fp32, where nothing but a wrong row or mask moves a probability visibly.
    torch.backends.cuda.matmul.allow_tf32 = False
    model = tiny.model(family, hidden_size=96, head_dim=16).to("cuda")
    plain = {name: value for name, value in changes.items() if name not in ("graph_keys", "max_graphs")}
    eager = DecisionEngine(model, tiny.tokenizer(), name="tiny", executor=executor, answer_encoding=encoding, **plain)
    replayed = eager.with_settings(cuda_graphs=True, graph_budget_mb=512, strict=True, **{"max_graphs": 16, **changes})
    for text in ("It was late again.", "It came early now.", "It was late again.", "It was " * 20):
        wanted, found = eager.decide(text, QUESTIONS), replayed.decide(text, QUESTIONS)
        # Padding and capture may change the matrix kernels, so bits may differ.
        assert flat(found) == pytest.approx(flat(wanted), abs=2e-5)
        # A repeated request replays to the same bits.
        assert flat(replayed.decide(text, QUESTIONS)) == flat(found)
    counters = replayed.counters()[executor]
    graphs = counters["graphs"]
    assert graphs["fallbacks"] == 0
    assert graphs["replays"] == counters["forward_calls"]
    assert graphs["captures"] <= graphs["replays"] / 2
    assert graphs["capture_ms"] > 0
    if changes.get("graph_keys") == "bucketed":
        # The short texts share a bucket.
        assert graphs["captures"] == 2
    if changes.get("shared_attention") == "on" or executor == "packed":
        assert counters["attention"].get("kernel", 0) > 0 or changes.get("shared_attention") == "off"


def test_many_requests_at_once_replay_one_bucket_a_pass():
    model = tiny.model("qwen2", hidden_size=96, head_dim=16).to("cuda")
    eager = DecisionEngine(model, tiny.tokenizer(), name="tiny", executor="packed", token_budget=1024)
    replayed = eager.with_settings(cuda_graphs=True, graph_keys="bucketed", graph_budget_mb=512, strict=True)
    requests = [(f"Parcel {number} was late. " * (number % 5 + 1), QUESTIONS) for number in range(24)]
    wanted, found = eager.decide_many(requests), replayed.decide_many(requests)
    for one, other in zip(wanted, found, strict=True):
        assert flat(other) == pytest.approx(flat(one), abs=2e-5)
    counters = replayed.counters()["packed"]
    assert counters["graphs"]["replays"] == counters["forward_calls"] > 1
    assert found[0]["metadata"]["stages_ms"]["device"] > 0


def test_the_command_of_the_source_document_runs_as_written(tmp_path):
    tiny.model("qwen2", dtype=torch.bfloat16, hidden_size=96, head_dim=16).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    arguments = ["--device", "cuda", "--cuda-graphs", "--fused-kernels", "rmsnorm", "swiglu", "rope"]
    arguments += ["--workflow", "workflow.json", "--interactive", "--json", "--model", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "jevify", *arguments],
        input="The parcel is late.\n/run\n\n\n\n\n/quit\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"refund_requested"' in done.stdout
    assert '"replays"' in done.stdout


def test_an_in_place_weight_change_shows_in_replays():
    model = tiny.model("qwen2").to("cuda")
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny", executor="packed", cuda_graphs=True)
    before = flat(engine.decide("A text.", QUESTIONS))
    with torch.no_grad():
        model.base_model.layers[0].mlp.down_proj.weight.mul_(3)
    engine.clear_optimization_cache()
    assert engine.counters()["packed"]["graphs"]["resident"] == 0
    after = flat(engine.decide("A text.", QUESTIONS))
    assert after != before
    assert after == pytest.approx(flat(engine.oracle("A text.", QUESTIONS)), abs=1e-4)


def test_strict_refuses_a_request_of_several_passes():
    engine = DecisionEngine(
        tiny.model("qwen2").to("cuda"),
        tiny.tokenizer(),
        name="tiny",
        executor="packed",
        cuda_graphs=True,
        token_budget=64,
    )
    engine.decide("A text. " * 20, QUESTIONS)
    assert "passes" in engine.counters()["packed"]["graphs"]["last_fallback"]
    with pytest.raises(SettingError, match=r"--strict: no graph was replayed: the request takes \d+ passes"):
        engine.with_settings(strict=True).decide("A text. " * 20, QUESTIONS)


def test_memory_stays_bounded_over_many_shapes():
    engine = DecisionEngine(
        tiny.model("llama").to("cuda"), tiny.tokenizer(), name="tiny", executor="packed", cuda_graphs=True
    )
    for size in range(1, 41):
        engine.decide("word " * size, QUESTIONS)
        graphs = engine.counters()["packed"]["graphs"]
        assert graphs["resident"] <= 4
        assert graphs["retained_bytes"] <= 192 * MIB
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for size in range(1, 81):
        engine.decide("word " * (size % 40 + 1), QUESTIONS)
    assert torch.cuda.memory_reserved() <= before + 2 * MIB
