"""Kernels by name and by part of the model, beside the floor of the part."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import InputError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.breakdown import Kernel, breakdown, group_floors, group_of, profiled
from jevify.evidence.expected import RequestSize
from jevify.evidence.floor import Machine
from jevify.evidence.kinds.profile import run as kind
from jevify.evidence.report import markdown, tables
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO: dict[str, Any] = {
    "name": "profile",
    "kind": "profile",
    "model": "fake",
    "seed": 7,
    "warmup": 1,
    "repeats": 2,
    "cases": [{"prefix_tokens": 50, "question_tokens": 20, "questions": count} for count in (4, 2)],
    "candidates": [{"name": "packed", "executor": "packed"}, {"name": "forked", "executor": "forked"}],
}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "products"),
        ("_attend", "attention"),
        ("_merge", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>", "attention"),
        ("_rms_norm", "norms"),
        ("_norm_rope", "rope"),
        ("_turn", "rope"),
        ("_silu_mul", "swiglu"),
        ("aten::addmm", "products"),
        ("aten::mm", "products"),
        ("aten::bmm", "products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::silu", "swiglu"),
        ("aten::copy_", "copies"),
        ("aten::mul", "other"),
        ("cutlass_80_simt_sgemm_32x128_8x5_tn_align1", "head"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::vectorized_gather_kernel<16, int>", "copies"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>", "copies"),
        ("void at::native::elementwise_kernel<128, 2, cos>", "other"),
    ],
)
def test_names_tell_the_part_of_the_model(name: str, group: str) -> None:
    assert group_of(name) == group


def test_totals_are_of_one_decision_in_descending_order() -> None:
    kernels = [Kernel("_attend", 10.0), Kernel("nvjet_a", 30.0), Kernel("nvjet_b", 20.0), Kernel("_attend", 20.0)] * 2
    found = breakdown(kernels, 2, {"products": 25.0})
    assert found["busy_us"] == 80.0
    assert found["groups"] == [
        {"group": "products", "calls": 2.0, "microseconds": 50.0, "share": 0.625, "floor_us": 25.0},
        {"group": "attention", "calls": 2.0, "microseconds": 30.0, "share": 0.375, "floor_us": None},
    ]
    assert [(line["kernel"], line["calls"], line["microseconds"]) for line in found["kernels"]] == [
        ("_attend", 2.0, 30.0),
        ("nvjet_a", 1.0, 30.0),
        ("nvjet_b", 1.0, 20.0),
    ]


def test_floors_of_products_and_attention() -> None:
    size = RequestSize(0, (130,), ((1,),))
    config = FakeEngine.config
    # 73,728 values of two bytes; 130 rows; every row sees itself and those before it.
    slow_memory = group_floors(config, size, Machine("x", bandwidth=1e6, rate=1e12))
    assert slow_memory["products"] == pytest.approx(2 * 73_728)
    slow_rate = group_floors(config, size, Machine("x", bandwidth=1e12, rate=1e6))
    assert slow_rate == {"products": 2 * 73_728 * 130, "attention": 4 * 2 * 4 * 16 * (130 * 131 // 2)}
    assert group_floors(config, size, None) == {}


def bench(monkeypatch: pytest.MonkeyPatch, fake: FakeModel, kernels: Any = None, **changes: Any) -> dict[str, Any]:
    def profiled(run: Any, device: str, trace: Path | None) -> list[Kernel]:
        run()
        return [Kernel("nvjet_a", 30.0), Kernel("_attend", 10.0)] * 2 if kernels is None else kernels

    monkeypatch.setattr(kind, "profiled", profiled)
    scenario = parse_scenario({**SCENARIO, **changes})
    return run_benchmark(scenario, command="x", load=lambda _: FakeEngine(fake), clock=fake.clock)


def fake(**changes: Any) -> FakeModel:
    model = FakeModel(FakeClock(), {"forked": [0.004], "packed": [0.002]})
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def test_each_case_is_profiled_in_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fake()
    result = bench(monkeypatch, model)
    assert failures(result) == []
    assert [executor for executor, _ in model.log] == (["packed"] * 5 + ["forked"] * 5) * 2
    # A warm-up, two timed decisions, two under the profiler; no context comes twice.
    assert len({context for _, context in model.log[:5]}) == 5
    row = result["cases"][0]["arms"][0]
    assert (row["busy_us"], row["rows"], row["device_us"], row["floor_us"]) == (40.0, 130, None, None)
    stages, groups, kernels = tables(result)
    assert stages.rows[:3] == [
        ["N=4 P=50 Q=20, packed", "forward", "model", "2.00", "2.00", "66.7%"],
        ["", "rest", "serving", "1.00", "1.00", "33.3%"],
        ["", "total", "", "2.00", "2.00", "100.0%"],
    ]
    assert "N=4 P=50 Q=20, packed: dominant stage forward (model), 66.7% of 2.00 ms" in markdown(result)
    assert groups.rows[0] == ["N=4 P=50 Q=20, packed", "products", "1", "30.0", "75.0%", "-", "-"]
    assert kernels.rows[1] == ["", "_attend", "attention", "1", "10.0", "25.0%"]
    assert "N=4 P=50 Q=20, packed: kernels take 40 us" in markdown(result)
    json.dumps(result)


def test_the_device_stage_and_the_floor_stand_beside_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_gpu(executor: str, decision: dict[str, Any], log: Any) -> None:
        decision["metadata"]["dtype"] = "bfloat16"
        decision["metadata"]["stages_ms"]["device"] = 0.05

    monkeypatch.setattr(kind, "machine_of", lambda device: Machine("tiny", 1e12, 1e12))
    result = bench(monkeypatch, fake(meddle=on_gpu))
    row = result["cases"][0]["arms"][0]
    assert row["device_us"] == 50.0
    products = 2 * 73_728 * 130 / 1e6
    assert row["groups"][0]["floor_us"] == pytest.approx(products, abs=1e-3)
    assert row["floor_us"] == pytest.approx(sum(group["floor_us"] for group in row["groups"]), rel=1e-3)
    assert "kernels take 40 us of 50 us on the device (under the profiler); the floor of 130 rows is 22 us" in markdown(
        result
    )


def test_without_the_profiler_the_stages_are_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(executor: str, decision: dict[str, Any], log: Any) -> None:
        decision["metadata"]["optimizations"] = {
            "cuda_graphs": False,
            "fused_kernels": ["rope"],
            "shared_attention_reason": "no Triton",
            "fallbacks": {"cuda_graphs": "CUDA graphs need a CUDA device"},
            "counters": {"forward_calls": 1},
        }
        decision["metadata"]["dtype"] = "bfloat16"
        decision["metadata"]["stages_ms"] = {"prepare": 0.5, "forward": 0.5, "device": 0.4, "total": 1.5}

    # 130 rows of the fake model: 22 us at 1e12 operations a second.
    monkeypatch.setattr(kind, "machine_of", lambda device: Machine("tiny", 1e12, 1e12))
    monkeypatch.setattr(kind, "profiled", lambda *_: pytest.fail("the profiler ran"))
    model = fake(meddle=told)
    scenario = parse_scenario({**SCENARIO, "kernels": False})
    result = run_benchmark(scenario, command="x", load=lambda _: FakeEngine(model), clock=model.clock)
    assert len(model.log) == 2 * 2 * 3
    (stages,) = tables(result)
    assert [row[1:] for row in stages.rows[:4]] == [
        ["prepare", "serving", "0.50", "0.50", "33.3%"],
        ["forward", "model", "0.50", "0.50", "33.3%"],
        ["device", "model", "0.40", "0.40", "in forward"],
        ["rest", "serving", "0.50", "0.50", "33.3%"],
    ]
    row = result["cases"][0]["arms"][0]
    assert row["times_floor"] == pytest.approx(2.0 / (row["floor_us"] / 1e3), rel=1e-3)
    text = markdown(result)
    assert "x the floor of 0.02 ms" in text
    assert "packed: active: cuda_graphs off, fused_kernels rope\n" in text
    assert "packed: fallbacks: cuda_graphs: CUDA graphs need a CUDA device; shared_attention: no Triton\n" in text


def test_the_profiler_sees_operators_on_a_cpu_and_leaves_a_trace(tmp_path: Path) -> None:
    left, right = torch.ones(64, 64), torch.ones(64, 64)
    kernels = profiled(lambda: torch.nn.functional.silu(left @ right), "cpu", tmp_path / "trace.json")
    assert {"aten::mm", "aten::silu"} <= {kernel.name for kernel in kernels}
    assert all(kernel.microseconds > 0 for kernel in kernels)
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"aten::mm", "aten::silu"} <= names


def test_an_arm_without_kernels_or_proof_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench(monkeypatch, fake(), kernels=[], candidates=SCENARIO["candidates"][:1])
    assert failures(result)[0] == "N=4 P=50 Q=20, packed: profile: the profiler saw nothing run on cpu"
    graphs = {"name": "graphs", "executor": "packed", "cuda_graphs": True}
    result = bench(monkeypatch, fake(), candidates=[graphs, SCENARIO["candidates"][1]])
    assert failures(result)[0] == (
        "N=4 P=50 Q=20, graphs: not what it says: 0 graphs were replayed in 2 timed decisions"
    )
    assert result["cases"][0]["arms"][1]["busy_us"] == 40.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cases", [], "scenario.cases: give a list"),
        ("cases", [{"questions": 1}], r"scenario.cases\[0\].prefix_tokens: missing"),
        ("candidates", SCENARIO["candidates"][:1] * 2, r"candidates\[1\].name: 'packed' is taken"),
        ("rows", [1], "scenario.rows: unknown field"),
        ("kernels", 1, "scenario.kernels: 1 is not true or false"),
        ("trace", "t.json", "scenario.trace: one file holds the trace of one size in one way"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_scenario({**SCENARIO, field: value})
