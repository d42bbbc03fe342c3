"""Every fused kernel beside its reference, in Triton's interpreter.

Equal bits where the arithmetic is the same: the residual sum, the rotation. The interpreter computes sums and
exponentials with NumPy, not as PyTorch does: there fp32 is a few ulp off, and low precision rounds nearly all of it
away. What a compiler may do to the arithmetic is for tests/gpu.
"""

import pytest
import torch

import kernel_cases as cases
from jevify.accel.ops import KERNELS, MODULE_KERNELS, opset, triton_runtime
from jevify.accel.ops.opset import OpSet, fused_ops
from jevify.accel.ops.rms_norm import residual_rms_norm_kernel, rms_norm_kernel
from jevify.accel.ops.rope import norm_rope, norm_rope_kernel
from jevify.accel.ops.rows import row_layout
from jevify.accel.ops.swiglu import silu_mul_kernel, swiglu_kernel
from jevify.errors import SettingError
from jevify.evidence.kernels import Exactness, exactness

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]
CPU = torch.device("cpu")
# Where a sum or an exponential is computed another way: the largest distance, and the share of low-precision values
# that a last fp32 bit may tip over a rounding boundary.
ULP_OF_FP32, ULP_OF_LOW, TIPPED = 4, 2, 1e-3
ROWS = [(0, 8), (1, 5), (5, 123), (7, 1), (33, 48), (2, 1_536)]


def assert_equal(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.is_contiguous()
        assert exactness(ours, theirs) == Exactness(0.0, 0)


def assert_close(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.is_contiguous()
        difference = exactness(ours, theirs)
        if ours.dtype is torch.float32:
            assert difference.ulp <= ULP_OF_FP32, difference
        else:
            assert difference.ulp <= ULP_OF_LOW, difference
            assert difference.mismatch <= TIPPED, difference


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(("rows", "width"), ROWS)
@pytest.mark.parametrize("pad", [0, 3])
def test_norms(rows, width, dtype, pad):
    torch.manual_seed(1)
    found, wanted = cases.norm_pair(rows, width, dtype, pad=pad)
    assert_close(found, wanted)
    assert_equal(found[2:], wanted[2:])


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(("rows", "width"), [*ROWS, (3, 1_025)])
@pytest.mark.parametrize("pad", [0, 3])
def test_swiglu(rows, width, dtype, pad):
    torch.manual_seed(2)
    assert_close(*cases.swiglu_pair(rows, width, dtype, pad=pad))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_swiglu_at_the_ends_of_the_range(dtype):
    gate = torch.tensor([[-1e4, -100.0, -88.0, -0.0, 0.0, 1e-5, 88.0, 1e4]]).to(dtype)
    (found,), (wanted,) = (swiglu_kernel(torch.cat((gate, gate), 1)),), (torch.nn.functional.silu(gate) * gate,)
    finite = wanted.isfinite()
    assert exactness(found[finite], wanted[finite]).ulp <= (ULP_OF_FP32 if dtype is torch.float32 else 0)
    assert torch.equal(found[~finite], wanted[~finite])


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("heads", [(6, 1), (5, 5), (1, 1), (12, 2)])
@pytest.mark.parametrize("size", [8, 22, 128])
@pytest.mark.parametrize(("tokens", "batches"), [(0, 1), (1, 1), (5, 1), (3, 4)])
def test_rope_is_bit_equal(heads, size, tokens, batches, dtype):
    torch.manual_seed(3)
    assert_equal(*cases.rope_pair(tokens, *heads, size, dtype, batches=batches))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(("heads", "size"), [((6, 1), 22), ((16, 8), 128)])
def test_rope_with_head_norms(heads, size, dtype):
    torch.manual_seed(4)
    found, wanted = cases.rope_pair(5, *heads, size, dtype, normed=True)
    for ours, theirs in zip(found, wanted, strict=True):
        # Two rounded products may cancel: the bound is absolute, a few roundings of values below 16.
        torch.testing.assert_close(ours, theirs, atol=32 * torch.finfo(dtype).eps, rtol=0)
        assert dtype is torch.float32 or exactness(ours, theirs).mismatch <= TIPPED


def test_rows_in_two_nested_loops():
    x = torch.randn(4, 5, 16)[:, 1:3, :9]
    weight = torch.randn(9)
    assert exactness(rms_norm_kernel(x, weight, 1e-6), cases.norm.rms_norm(x, weight, 1e-6)).ulp <= ULP_OF_FP32
    assert row_layout("x", x) == (8, 2, 5 * 16, 16)
    assert row_layout("x", torch.empty(2, 3, 4, 8)) == (24, 1, 8, 0)
    assert row_layout("x", torch.empty(2, 3, 4, 16)[..., :8]) == (24, 1, 16, 0)
    assert row_layout("x", torch.empty(7, 1, 16)[:, :, :8]) == (7, 1, 16, 0)
    assert row_layout("x", torch.empty(8)) == (1, 1, 8, 0)
    with pytest.raises(ValueError, match="more than two nested loops; make it contiguous"):
        row_layout("x", torch.empty(4, 4, 4, 16)[:, :3, :3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rms_norm_kernel(torch.randn(2, 8)[:, ::2], torch.ones(4), 1e-6), "last dimension has stride 2"),
        (lambda: rms_norm_kernel(torch.randn(2, 4).double(), torch.ones(4).double(), 1e-6), "must be one of float16"),
        (lambda: rms_norm_kernel(torch.randn(2, 4), torch.ones(4).half(), 1e-6), "float32, torch.float16; all must"),
        (lambda: rms_norm_kernel(torch.randn(2, 4), torch.ones(5), 1e-6), r"weight must be \[H\]"),
        (lambda: rms_norm_kernel(torch.randn(1, 65_537), torch.ones(65_537), 1e-6), "H <= 65536"),
        (lambda: rms_norm_kernel(torch.randn(2, 4), torch.ones(4, requires_grad=True), 1e-6), "no backward"),
        (
            lambda: residual_rms_norm_kernel(torch.randn(2, 4), torch.randn(1, 4), torch.ones(4), 1e-6),
            r"x is \(2, 4\) and the residual \(1, 4\)",
        ),
        (lambda: swiglu_kernel(torch.randn(2, 5)), "must be even"),
        (lambda: silu_mul_kernel(torch.randn(2, 5), torch.randn(2, 4)), "the shapes must be the same"),
        (lambda: norm_rope_kernel(*[torch.randn(2, 1, 7)] * 2, *[torch.randn(2, 7)] * 2), "heads of 7 values"),
        (lambda: norm_rope_kernel(*[torch.randn(3, 1, 8)] * 2, *[torch.randn(2, 8)] * 2), "P dividing 3 tokens"),
        (
            lambda: norm_rope_kernel(*[torch.randn(3, 1, 8)] * 2, *[torch.randn(3, 8)] * 2, torch.ones(8)),
            "one weight is missing",
        ),
        (
            lambda: norm_rope(torch.randn(3, 1, 8), torch.randn(3, 1, 6), *[torch.randn(3, 8)] * 2),
            "they differ in more than heads",
        ),
    ],
)
def test_what_a_launcher_does_not_take_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def build(*kernels, dtype=torch.float32, widths=(48,), head_size=8):
    return fused_ops(kernels, device=CPU, dtype=dtype, widths=widths, head_size=head_size)


def test_by_default_every_operation_is_its_reference():
    assert build() == OpSet()
    ops = OpSet()
    assert ops.kernels == ()
    assert ops.launches == {}


def test_an_op_set_counts_its_own_launches_only():
    first, second = build("residual_norm", "rmsnorm"), build("swiglu", "rope")
    assert first.kernels == ("rmsnorm", "residual_norm")
    x, weight = torch.randn(3, 8), torch.ones(8)
    first.rms_norm(x, weight, 1e-6)
    first.rms_norm(x[:0], weight, 1e-6)
    first.residual_rms_norm(x, x, weight, 1e-6)
    first.silu_mul(x, x)
    second.silu_mul(x, x)
    second.norm_rope(x[:, None], x[:, None], x, x)
    assert first.launches == {"rmsnorm": 1, "residual_norm": 1}
    assert second.launches == {"swiglu": 1, "rope": 1}


def test_the_norm_kernel_serves_every_norm_that_has_no_kernel_of_its_own():
    ops = build("rmsnorm")
    x, weight = torch.randn(3, 8), torch.ones(8)
    _, total = ops.residual_rms_norm(x, 2 * x, weight, 1e-6)
    assert torch.equal(total, 2 * x + x)
    ops.norm_rope(x[:, None], x[:, None], x, x, weight, weight, 1e-6)
    assert ops.launches == {"rmsnorm": 3}


@pytest.mark.parametrize(
    ("kernels", "options", "message"),
    [
        (
            ("rope", "gelu"),
            {},
            "fused kernel 'gelu' is not known; the kernels are rmsnorm, swiglu, rope, residual_norm",
        ),
        (("swiglu",), {"dtype": torch.float64}, "fused kernel swiglu: torch.float64 is not supported"),
        (("rope",), {"head_size": 7}, "fused kernel rope: heads of 7 values cannot be rotated"),
        (("rmsnorm",), {"widths": (8, 70_000)}, "fused kernel rmsnorm: rows of 70000 values are wider than 65536"),
    ],
)
def test_an_impossible_kernel_is_refused_by_name(kernels, options, message):
    with pytest.raises(SettingError) as caught:
        build(*kernels, **options)
    assert str(caught.value).startswith(message)


@pytest.fixture
def unprobed():
    triton_runtime.failure.cache_clear()
    yield
    triton_runtime.failure.cache_clear()


@pytest.mark.usefixtures("unprobed")
def test_a_missing_compiler_and_headers_are_named_at_the_first_request(monkeypatch, tmp_path):
    def broken(*_grid):
        def launch(*_arguments):
            raise RuntimeError("cannot build the launch helper")

        return launch

    monkeypatch.setattr(triton_runtime, "_probe_kernel", type("Broken", (), {"__getitem__": broken})())
    monkeypatch.setenv("CC", str(tmp_path / "absent-cc"))
    monkeypatch.setattr(triton_runtime.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(SettingError) as caught:
        build("swiglu")
    told = str(caught.value)
    assert told.startswith("fused kernel swiglu: Triton cannot build or launch a kernel on cpu (no C compiler (")
    assert "install gcc; no Python headers (" in told
    assert told.endswith("RuntimeError: cannot build the launch helper")


@pytest.mark.usefixtures("unprobed")
def test_without_triton_the_reason_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(triton_runtime, "triton", None)
    with pytest.raises(SettingError, match="fused kernel rope: Triton is not installed; pip install 'jevify"):
        build("rope")


def test_names_are_those_of_the_slots_that_exist():
    assert set(build(*MODULE_KERNELS).launches) == set(MODULE_KERNELS)
    assert set(opset.KERNELS) == set(KERNELS) == {*MODULE_KERNELS, "linear"}
