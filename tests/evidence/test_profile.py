"""Kernels by name and by part of the model, beside the floor of the part."""

import json
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import InputError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.breakdown import Kernel, breakdown, group_floors, group_of
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
    def profiled(run: Any) -> list[Kernel]:
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
    assert [executor for executor, _ in model.log] == ["packed"] * 3 + ["forked"] * 3 + ["packed"] * 3 + ["forked"] * 3
    row = result["cases"][0]["arms"][0]
    assert (row["busy_us"], row["rows"], row["device_us"], row["floor_us"]) == (40.0, 130, None, None)
    groups, kernels = tables(result)
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


def test_an_arm_without_kernels_or_proof_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench(monkeypatch, fake(), kernels=[], candidates=SCENARIO["candidates"][:1])
    assert failures(result)[0] == "N=4 P=50 Q=20, packed: profile: the profiler saw nothing run on a GPU"
    graphs = {"name": "graphs", "executor": "packed", "cuda_graphs": True}
    result = bench(monkeypatch, fake(), candidates=[graphs, SCENARIO["candidates"][1]])
    assert failures(result)[0] == (
        "N=4 P=50 Q=20, graphs: profile: not what it says: 0 graphs were replayed in 2 timed decisions"
    )
    assert result["cases"][0]["arms"][1]["busy_us"] == 40.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cases", [], "scenario.cases: give a list"),
        ("cases", [{"questions": 1}], r"scenario.cases\[0\].prefix_tokens: missing"),
        ("candidates", SCENARIO["candidates"][:1] * 2, r"candidates\[1\].name: 'packed' is taken"),
        ("rows", [1], "scenario.rows: unknown field"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_scenario({**SCENARIO, field: value})
