"""Compiled kernels beside their references at real sizes: exactness, huge offsets, graphs, caches, engines."""

import os
import subprocess
import sys

import pytest
import torch

import kernel_cases as cases
import tiny
from jevify import Choice, Noul
from jevify.accel.ops import MODULE_KERNELS, triton_runtime
from jevify.accel.ops import rms_norm as norm
from jevify.accel.ops import rope as rotary
from jevify.accel.ops import swiglu as gated
from jevify.engine import DecisionEngine
from jevify.evidence.kernels import Exactness, exactness
from jevify.models.lm.fused import fuse

pytestmark = pytest.mark.gpu
# Another order of summation moves the last bits of fp32; a low-precision value near a rounding boundary then tips.
ULP_OF_FP32, ULP_OF_LOW, TIPPED = 8, 2, 1e-3
EXACT = Exactness(0.0, 0)
# Element offsets beyond 2^31 from this row on, at 256 values a row.
FAR = 2**23
CONTEXT = "The parcel arrived two days late and the box was torn. " * 4
QUESTIONS = {
    "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical support": None}),
    "late": Noul(instructions="Is it late?"),
}
DRIFT = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)
    yield
    torch.cuda.empty_cache()


def assert_close(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        difference = exactness(ours, theirs)
        print(f"{tuple(ours.shape)} {ours.dtype}: {difference}")
        if ours.dtype is torch.float32:
            assert difference.ulp <= ULP_OF_FP32, difference
        else:
            assert difference.ulp <= ULP_OF_LOW, difference
            # In a small tensor one tipped value is more than the rate.
            assert difference.mismatch <= max(TIPPED, 1 / max(1, ours.numel())), difference


def flat(decision):
    return [p for answer in decision["answers"].values() for p in answer["probabilities"].values()]


def test_kernels_can_run_here():
    assert not triton_runtime.INTERPRETED
    assert triton_runtime.failure("cuda:0") is None


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("width", [1, 123, 576, 1_536, 5_120, 16_384])
@pytest.mark.parametrize(("rows", "pad"), [(0, 0), (1, 0), (5, 3), (123, 8), (2_490, 0)])
def test_norms(rows, width, pad, dtype):
    found, wanted = cases.norm_pair(rows, width, dtype, "cuda", pad)
    assert_close(found, wanted)
    assert exactness(found[2], wanted[2]) == EXACT


def test_the_widest_norm():
    assert_close(*cases.norm_pair(7, norm.MAX_WIDTH, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("width", [1, 123, 1_536, 4_864, 8_960, 14_336])
@pytest.mark.parametrize(("rows", "pad"), [(0, 0), (1, 0), (5, 3), (123, 8), (2_490, 0)])
def test_swiglu(rows, width, pad, dtype):
    assert_close(*cases.swiglu_pair(rows, width, dtype, "cuda", pad))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(
    ("heads", "size"), [((12, 2), 128), ((14, 2), 64), ((32, 8), 128), ((9, 3), 64), ((5, 1), 22), ((64, 8), 128)]
)
@pytest.mark.parametrize(("tokens", "batches"), [(0, 1), (1, 1), (5, 4), (123, 1), (2_490, 1)])
def test_rope_is_bit_equal(heads, size, tokens, batches, dtype):
    for ours, theirs in zip(*cases.rope_pair(tokens, *heads, size, dtype, "cuda", batches=batches), strict=True):
        assert exactness(ours, theirs) == EXACT


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(("heads", "size"), [((16, 8), 128), ((5, 1), 22)])
def test_rope_with_head_norms(heads, size, dtype):
    for ours, theirs in zip(*cases.rope_pair(2_490, *heads, size, dtype, "cuda", normed=True), strict=True):
        print(f"{tuple(ours.shape)} {ours.dtype}: {exactness(ours, theirs)}")
        # Two rounded products may cancel: the bound is absolute, a few roundings of values below 32.
        torch.testing.assert_close(ours, theirs, atol=64 * torch.finfo(dtype).eps, rtol=0)
        assert dtype is torch.float32 or exactness(ours, theirs).mismatch <= TIPPED


@pytest.mark.parametrize("rows", [65_535, 65_536, 65_537, 200_003])
def test_more_rows_than_a_second_grid_axis_holds(rows):
    assert_close(*cases.norm_pair(rows, 123, torch.bfloat16, "cuda"))
    assert_close(*cases.swiglu_pair(rows, 123, torch.bfloat16, "cuda"))
    for ours, theirs in zip(*cases.rope_pair(rows, 3, 1, 22, torch.bfloat16, "cuda"), strict=True):
        assert exactness(ours, theirs) == EXACT


def far_slices(rows):
    return [slice(0, 64), slice(rows - 80, rows)]


def test_norm_offsets_beyond_int32():
    rows = FAR + 16
    x, residual = (torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(256, device="cuda", dtype=torch.bfloat16)
    plain = norm.rms_norm_kernel(x, weight, 1e-6)
    summed, total = norm.residual_rms_norm_kernel(x, residual, weight, 1e-6)
    for part in far_slices(rows):
        assert_close([plain[part]], [norm.rms_norm(x[part], weight, 1e-6)])
        assert_close([summed[part], total[part]], norm.residual_rms_norm(x[part], residual[part], weight, 1e-6))


def test_swiglu_offsets_beyond_int32():
    rows = FAR + 16
    gate_up = torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16)
    found = gated.swiglu_kernel(gate_up)
    for part in far_slices(rows):
        assert_close([found[part]], [gated.swiglu(gate_up[part])])


@pytest.mark.parametrize("normed", [False, True])
def test_rope_offsets_beyond_int32(normed):
    tokens = 2**20 + 16
    merged = torch.randn(tokens, 20, 128, device="cuda", dtype=torch.bfloat16)
    q, k, _ = merged.split((16, 2, 2), dim=1)
    assert 16 * 128 * tokens > 2**31
    table = torch.randn(2, tokens, 128, device="cuda", dtype=torch.bfloat16)
    weights = torch.rand(2, 128, device="cuda").bfloat16() if normed else (None, None)
    found = rotary.norm_rope_kernel(q, k, *table, *weights, 1e-6)
    for part in far_slices(tokens):
        wanted = rotary.norm_rope(q[part], k[part], *table[:, part], *weights, 1e-6)
        for ours, theirs in zip(found, wanted, strict=True):
            assert exactness(ours[part], theirs).mismatch <= (TIPPED if normed else 0)


def test_a_head_stride_beyond_int32():
    x = torch.randn(3, 2**24, 64, device="cuda", dtype=torch.bfloat16).transpose(0, 1)[:5]
    assert x.stride(1) * 2 >= 2**31
    table = torch.randn(2, 5, 64, device="cuda", dtype=torch.bfloat16)
    for ours, theirs in zip(rotary.norm_rope_kernel(x, x, *table), rotary.norm_rope(x, x, *table), strict=True):
        assert exactness(ours, theirs) == EXACT


def test_another_row_count_compiles_nothing():
    weight = torch.randn(1_536, device="cuda")

    def run(rows):
        x = torch.randn(rows, 1_536, device="cuda")
        norm.residual_rms_norm_kernel(x, x, weight, 1e-6)
        gated.swiglu_kernel(x)
        heads = x.view(rows, 12, 128)
        rotary.norm_rope_kernel(heads, heads[:, :2], x[:, :128], x[:, :128])

    def compiled():
        kernels = (norm._rms_norm, gated._silu_mul, rotary._norm_rope)
        return [len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels]

    run(5)
    before = compiled()
    for rows in (1, 2, 16, 17, 400, 4_096):
        run(rows)
    assert compiled() == before


def test_kernels_replay_in_a_graph_with_changed_inputs():
    x, weight = torch.randn(64, 1_536, device="cuda").bfloat16(), torch.randn(1_536, device="cuda").bfloat16()

    def run():
        return norm.residual_rms_norm_kernel(gated.swiglu_kernel(torch.cat((x, x), 1)), x, weight, 1e-6)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for _ in range(3):
        x.copy_(torch.randn(64, 1_536, device="cuda"))
        graph.replay()
        for ours, theirs in zip(captured, run(), strict=True):
            assert torch.equal(ours, theirs)


def test_two_processes_may_fill_one_empty_cache(tmp_path):
    code = (
        "import torch; from jevify.accel.ops.rms_norm import rms_norm_kernel as kernel;"
        "x = torch.ones(3, 77, device='cuda'); assert kernel(x, x[0], 0.0).eq(1).all()"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(300) for process in running] == [0, 0, 0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one():
    x = torch.randn(5, 123, device="cuda:1")
    with torch.cuda.device(0):
        assert_close([norm.rms_norm_kernel(x, x[0], 1e-6)], [norm.rms_norm(x, x[0], 1e-6)])


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", DRIFT, ids=str)
@pytest.mark.parametrize("executor", ["forked", "packed"])
def test_engines_with_kernels_agree_with_the_fp32_oracle(family, dtype, executor):
    torch.backends.cuda.matmul.allow_tf32 = False
    plain = DecisionEngine(tiny.model(family, dtype=dtype).to("cuda"), tiny.tokenizer(), name="tiny")
    engine = plain.with_settings(executor=executor, fused_kernels=MODULE_KERNELS, strict=True)
    found = engine.decide(CONTEXT, QUESTIONS)
    assert flat(found) == pytest.approx(flat(plain.oracle(CONTEXT, QUESTIONS)), abs=DRIFT[dtype])
    launches = found["metadata"]["optimizations"]["counters"]["kernel_launches"]
    assert list(launches) == list(MODULE_KERNELS)
    assert all(launches.values())


def test_a_plain_transformers_model_takes_the_kernels_and_gives_them_back():
    model = tiny.model("qwen3", dtype=torch.bfloat16, hidden_size=1_024, head_dim=128).to("cuda")
    ids = torch.randint(0, 700, (2, 33), device="cuda")
    with torch.no_grad():
        wanted = model(ids).logits
        with fuse(model):
            torch.testing.assert_close(model(ids).logits, wanted, atol=0.1, rtol=0.02)
        assert torch.equal(model(ids).logits, wanted)
