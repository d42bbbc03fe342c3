"""Three ways to run a request give the same scores, and nothing leaks from one branch or request to another."""

import hashlib
import inspect
import math

import pytest
import torch
from transformers.cache_utils import DynamicLayer

import tiny
from jevify.accel.stages import StageTimer
from jevify.decide.executors import forked_forward, independent
from jevify.decide.plan import Branch, RequestPlan
from jevify.errors import SettingError
from plan_cases import assert_same, build, plans, relative

pytestmark = pytest.mark.cpu
ORACLE_DIGEST = "b3773f2209438a83c97ddec3566fb9413fab24b002e7d1aed65a7998dec5c9e4"


CANDIDATES = [
    ("packed", {}),
    ("packed", {"token_budget": 16}),
    ("forked", {}),
    ("forked", {"branch_batch_size": 1}),
    ("forked", {"branch_batch_size": 3, "length_aware": False}),
    ("forked", {"efficient_cache": False}),
]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize(("name", "options"), CANDIDATES)
def test_every_executor_agrees_with_the_oracle(family, name, options):
    model = tiny.model(family)
    wanted = build("independent", model).run(plans(), StageTimer())
    found = build(name, model, **options).run(plans(), StageTimer())
    assert [[len(scores) for scores in request] for request in found] == [
        [len(branch.answers) for branch in plan.branches] for plan in plans()
    ]
    assert_same(found, wanted, 2e-5)


@pytest.mark.parametrize("family", tiny.FAMILIES)  # tied and untied heads
@pytest.mark.parametrize("biased", [False, True])
def test_the_oracle_is_a_plain_log_softmax_of_transformers(family, biased):
    model = tiny.model(family)
    if biased:
        model.lm_head.bias = torch.nn.Parameter(torch.randn(model.lm_head.out_features), requires_grad=False)
    plan = plans()[0]
    found = relative(build("independent", model).run([plan], StageTimer()))
    for branch, ours in zip(plan.branches, found, strict=True):
        totals = []
        for path in branch.answers:
            ids = torch.tensor([plan.prefix + branch.tokens + path])
            with torch.no_grad():
                logs = model(ids).logits[0].double().log_softmax(-1)
            start = len(plan.prefix + branch.tokens)
            totals.append(sum(logs[start - 1 + index, token].item() for index, token in enumerate(path)))
        shift = math.log(sum(map(math.exp, totals)))
        assert ours == pytest.approx([total - shift for total in totals], abs=1e-5)


def test_the_oracle_source_is_frozen():
    """Changing the oracle is a decision of its own: re-run the evidence that rests on it, then set the digest here."""
    source = inspect.getsource(independent)
    assert hashlib.sha256(source.encode()).hexdigest() == ORACLE_DIGEST


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_fp32_oracle_on_bf16_weights_is_an_upcast_model(family):
    low = tiny.model(family, dtype=torch.bfloat16)
    wide = tiny.model(family, dtype=torch.bfloat16).float()
    found = build("independent", low, float32=True).run(plans(), StageTimer())
    assert_same(found, build("independent", wide).run(plans(), StageTimer()), 1e-5)


@pytest.mark.parametrize("name", ["packed", "forked", "independent"])
def test_a_request_does_not_depend_on_its_neighbours_or_the_past(name):
    model = tiny.model("llama")
    executor = build(name, model)
    alone = [build(name, model).run([plan], StageTimer())[0] for plan in plans()]
    assert_same(executor.run(plans(), StageTimer()), alone, 2e-6)
    assert_same(executor.run(plans()[::-1], StageTimer())[::-1], alone, 2e-6)


@pytest.mark.parametrize("name", ["packed", "forked"])
def test_a_branch_does_not_depend_on_its_siblings(name):
    plan = plans()[0]
    executor = build(name, tiny.model("qwen3"))
    whole = executor.run([plan], StageTimer())
    for index, branch in enumerate(plan.branches):
        alone = executor.run([RequestPlan(plan.prefix, (branch,))], StageTimer())
        assert_same(alone, [[whole[0][index]]], 2e-6)


def test_counters_tell_the_work_done():
    model = tiny.model("llama")
    ragged, lone, even = plans()
    made = build("independent", model)
    made.run([ragged], StageTimer())
    assert made.counters()["forward_calls"] == 4 + 3 + 2  # four questions, five label paths
    made = build("packed", model)
    made.run([ragged, lone, even], StageTimer())
    assert made.counters() == {
        "forward_calls": 1,
        # prefix + branches + label leaves of each request
        "packed_rows": (19 + 9 + 1 + 14 + 5 + 2 + 1 + 1 + 1 + 2) + (11 + 1) + (4 + 5 * 6),
        "padding_rows": 0,
        "last_graph_rows": None,
        "attention": {"reference": 1},
    }
    made = build("forked", model, branch_batch_size=2)
    made.run([even], StageTimer())
    assert made.counters() == {
        "forward_calls": 1 + 3,
        "deep_copies": 0,
        "last_copy_fallback": None,
        "reordered_requests": 0,
        "padded_tokens_unordered": 0,
        "padded_tokens": 0,
        "fusion_fallbacks": 0,
        "last_fusion_fallback": None,
    }


def test_length_grouping_saves_the_padding_it_reports():
    generator = torch.Generator().manual_seed(0)
    lengths = [2, 9, 3, 8]
    branches = tuple(
        Branch(tuple(torch.randint(0, 700, (length,), generator=generator).tolist()), ((1,), (2,)))
        for length in lengths
    )
    executor = build("forked", tiny.model("llama"), branch_batch_size=2)
    executor.run([RequestPlan((5, 6), branches)], StageTimer())
    counters = executor.counters()
    assert counters["padded_tokens_unordered"] == 7 + 5
    assert counters["padded_tokens"] == 1 + 1
    assert counters["reordered_requests"] == 1


class UnknownLayer(DynamicLayer):
    """A cache layout this project has never seen."""


@pytest.fixture
def unknown_layout(monkeypatch):
    original = forked_forward.new_cache

    def made(model):
        cache = original(model)
        for layer in cache.layers:
            layer.__class__ = UnknownLayer
        return cache

    monkeypatch.setattr(forked_forward, "new_cache", made)


@pytest.mark.usefixtures("unknown_layout")
def test_an_unknown_cache_layout_falls_back_to_a_deep_copy_and_says_so():
    model = tiny.model("qwen2")
    executor = build("forked", model, branch_batch_size=2)
    found = executor.run([plans()[2]], StageTimer())
    assert_same(found, build("independent", model).run([plans()[2]], StageTimer()), 2e-5)
    assert executor.counters()["deep_copies"] == 3
    assert executor.counters()["last_copy_fallback"] == "cache layout DynamicCache of UnknownLayer is not known"


@pytest.mark.usefixtures("unknown_layout")
def test_strict_refuses_the_deep_copy():
    executor = build("forked", tiny.model("qwen2"), strict=True)
    with pytest.raises(SettingError, match="UnknownLayer is not known"):
        executor.run([plans()[2]], StageTimer())


def test_stages_are_named():
    model = tiny.model("llama")
    for name, stages in [
        ("independent", ["forward", "scoring", "total"]),
        ("forked", ["prefill", "branches", "scoring", "total"]),
        ("packed", ["pack", "forward", "scoring", "total"]),
    ]:
        timer = StageTimer()
        build(name, model).run(plans(), timer)
        times = timer.milliseconds()
        assert list(times) == stages
        assert sum(times[stage] for stage in stages[:-1]) <= times["total"]
