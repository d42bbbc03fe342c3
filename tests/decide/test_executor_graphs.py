"""Graphs, bucketed keys and the shared prefix give the scores of eager execution, whatever was replayed before."""

import pytest
import torch
import triton

import tiny
import triton_interpreter
from host_graphs import HostSpace
from jevify.accel.graphs import GraphPool
from jevify.accel.ops import triton_runtime
from jevify.accel.stages import StageTimer
from jevify.decide.executors.forked import ForkedExecutor
from jevify.decide.executors.packed import PackedExecutor
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Branch, RequestPlan
from jevify.errors import SettingError
from jevify.models.lm import attention as attention_module
from jevify.models.lm.attention import KernelAttention, ReferenceAttention
from jevify.models.lm.dense import DenseDecoder
from jevify.models.lm.fused import Fusion, fuse, model_ops
from jevify.models.lm.shared_prefix import SharedPrefix
from jevify.models.lm.weights import merge
from plan_cases import assert_same, build, plans

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]
if triton_runtime.INTERPRETED:
    triton_interpreter.repair()


def kernel(weights, fallback=False):
    device, dtype = weights.embedding.device, weights.embedding.dtype
    return KernelAttention(
        heads=weights.heads,
        kv_heads=weights.kv_heads,
        head_dim=weights.head_dim,
        dtype=dtype,
        device=device,
        specialize_short=True,
        fallback=ReferenceAttention(device, dtype) if fallback else None,
    )


def model_of(family):
    # Small: the interpreter runs every program of the kernel.
    sizes = {"hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    return tiny.model(family, **sizes, num_hidden_layers=2)


def pool(**options):
    return GraphPool(HostSpace(), **{"max_graphs": 16, "budget_bytes": 2**30, **options})


def packed(model, **options):
    weights = merge(model)
    decoder = DenseDecoder(weights, attention=options.pop("attention", None) or kernel(weights))
    head = AnswerHead(weights.head, weights.head_bias)
    return PackedExecutor(decoder, head, **{"token_budget": 8192, **options})


def forked(model, *, share, **options):
    weights = merge(model)
    shared = SharedPrefix() if share else None
    settings = {"branch_batch_size": 3, "efficient_cache": True, "length_aware": True, "strict": False}
    return ForkedExecutor(
        model,
        AnswerHead(weights.head, weights.head_bias),
        fusion=Fusion(model, model_ops(model, ()), shared) if share else None,
        attention=kernel(weights) if share else None,
        shared=shared,
        **{**settings, **options},
    )


def other_plans():
    """Requests of other contents; the second and third have the shapes of those of `plans`."""
    shift = [
        RequestPlan(
            tuple((token + 7) % 700 for token in plan.prefix),
            tuple(Branch(tuple((token + 3) % 700 for token in b.tokens), b.answers) for b in plan.branches),
        )
        for plan in plans()
    ]
    shorter = RequestPlan(shift[0].prefix[:5], shift[0].branches[1:])
    return [shorter, *shift[1:]]


@pytest.mark.parametrize("bucketed", [False, True])
def test_packed_graphs_replay_what_eager_passes_give(bucketed):
    model = model_of("qwen3")
    graphs = pool()
    executor = packed(model, graphs=graphs, bucketed=bucketed, strict=True)
    oracle = build("independent", model)
    for requests in (plans(), other_plans(), plans()):
        for plan in requests:
            assert_same(executor.run([plan], StageTimer()), oracle.run([plan], StageTimer()), 2e-5)
    counters = graphs.counters()
    assert (counters["replays"], counters["fallbacks"]) == (9, 0)
    # Exact: three shapes and one more for the shorter request. Bucketed: with and without label leaves.
    assert counters["captures"] == (2 if bucketed else 4)
    rows = executor.counters()
    assert rows["padding_rows"] == (9 * 192 - rows["packed_rows"] if bucketed else 0)


def test_requests_share_passes_and_are_not_cut():
    model = model_of("qwen2")
    graphs = pool()
    executor = packed(model, graphs=graphs, bucketed=True, strict=True, token_budget=80)
    requests = plans() + other_plans()
    assert max(plan.tokens for plan in requests) <= 80
    found = executor.run(requests, StageTimer())
    assert_same(found, build("independent", model).run(requests, StageTimer()), 2e-5)
    # Tokens: 55 and 12, then 34, 32 and 12, then 34.
    assert executor.counters()["forward_calls"] == 3
    assert graphs.counters()["replays"] == 3


def test_a_request_over_the_budget_runs_eagerly_and_strict_refuses_it():
    model = model_of("qwen2")
    graphs = pool()
    executor = packed(model, graphs=graphs, token_budget=16)
    found = executor.run(plans()[:1], StageTimer())
    assert_same(found, build("independent", model).run(plans()[:1], StageTimer()), 2e-5)
    assert graphs.counters()["last_fallback"] == "the request takes 4 passes"
    with pytest.raises(SettingError, match=r"--strict: no graph was replayed: the request takes \d+ passes"):
        packed(model, graphs=pool(), token_budget=16, strict=True).run(plans()[:1], StageTimer())


@pytest.mark.parametrize(("family", "share"), [("llama", False), ("qwen3", False), ("qwen3", True)])
@pytest.mark.parametrize("captured", [False, True])
def test_forked_branches_continue_the_prefix_shared_or_copied_captured_or_not(family, share, captured):
    model = model_of(family)
    executor = forked(model, share=share, graphs=pool() if captured else None, strict=True)
    oracle = build("independent", model)
    # The second round meets captured shapes with other contents.
    for requests in (plans(), other_plans()):
        assert_same(executor.run(requests, StageTimer()), oracle.run(requests, StageTimer()), 2e-5)
    counters = executor.counters()
    # Batches of up to three rows: of 7, 2 and 5 rows, then of 6, 2 and 5. Four of the six requests have a prefix.
    assert counters["forward_calls"] == (3 + 1 + 2) + (2 + 1 + 2) + 4
    if share:
        assert counters["attention"]["kernel"] == (3 + 2) + (2 + 2)
    if captured:
        assert counters["graphs"]["fallbacks"] == 0
        assert counters["graphs"]["replays"] == counters["forward_calls"]
        # The lone question and the equal branches, with their prefix, were there before.
        assert counters["graphs"]["captures"] < counters["forward_calls"] - 3
    assert counters["deep_copies"] == 0


def test_a_forked_graph_that_does_not_fit_runs_eagerly():
    model = model_of("qwen2")
    executor = forked(model, share=False, graphs=pool(budget_bytes=1))
    found = executor.run(plans(), StageTimer())
    assert_same(found, build("independent", model).run(plans(), StageTimer()), 2e-5)
    counters = executor.counters()
    assert counters["graphs"]["fallbacks"] == counters["forward_calls"]
    with pytest.raises(SettingError, match="--strict: no graph was replayed: a graph of about"):
        forked(model, share=False, graphs=pool(budget_bytes=1), strict=True).run(plans(), StageTimer())


def test_sharing_leaves_a_model_alone_whose_forwards_are_replaced():
    model = model_of("qwen2")
    executor = forked(model, share=True, fusion_optional=True)
    wanted = build("independent", model).run(plans(), StageTimer())
    with fuse(model, ("rope",)):
        assert_same(executor.run(plans(), StageTimer()), wanted, 2e-5)
        assert executor.counters()["attention"]["kernel"] == 0
        assert "replaced already" in executor.counters()["last_fusion_fallback"]
        with pytest.raises(SettingError, match="--strict: branches cannot share the prefix"):
            forked(model, share=True, fusion_optional=True, strict=True).run(plans(), StageTimer())
    assert_same(executor.run(plans(), StageTimer()), wanted, 2e-5)
    assert executor.counters()["attention"]["kernel"] > 0


def test_a_kernel_that_cannot_be_built_falls_back_once_and_is_remembered(monkeypatch):
    model = model_of("qwen2")
    tries = []

    def fails(*arguments):
        tries.append(arguments)
        raise triton.runtime.errors.OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(attention_module, "fused_tree_attention", fails)
    weights = merge(model)
    executor = packed(model, attention=kernel(weights, fallback=True))
    wanted = build("independent", model).run(plans(), StageTimer())
    for _ in range(2):
        assert_same(executor.run(plans(), StageTimer()), wanted, 2e-5)
    assert len(tries) == 1
    counters = executor.counters()["attention"]
    assert (counters["kernel"], counters["reference"]) == (0, 2)
    assert "out of resource" in counters["last_fallback"]
    for strictly in (packed(model, attention=kernel(weights)), forked(model, share=True)):
        with pytest.raises(SettingError, match="--shared-attention on: the kernel cannot be built"):
            strictly.run(plans(), StageTimer())


def test_errors_of_the_device_surface(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(attention_module, "fused_tree_attention", fails)
    model = model_of("qwen2")
    executor = packed(model, attention=kernel(merge(model), fallback=True))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        executor.run(plans(), StageTimer())


@pytest.mark.parametrize("fused", [False, True])
def test_carried_rows_are_read_where_they_lie(fused):
    model = model_of("qwen3")
    weights = merge(model)
    attention = kernel(weights) if fused else ReferenceAttention(torch.device("cpu"), torch.float32)
    found = packed(model, attention=attention, token_budget=9).run(plans(), StageTimer())
    assert_same(found, build("independent", model).run(plans(), StageTimer()), 2e-5)
