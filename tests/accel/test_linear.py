"""The product for few rows: exact sums, any shape, the way that was measured."""

import pytest
import torch

import tiny
import triton_interpreter
from jevify.accel.ops import MODULE_KERNELS, triton_runtime
from jevify.accel.ops.linear import LinearTile, linear, linear_kernel
from jevify.accel.ops.linear_choice import choices, chosen_linear, shipped_table
from jevify.accel.ops.opset import fused_ops
from jevify.accel.tree import TokenTree
from jevify.decide.settings import DecideSettings
from jevify.engine import DecisionEngine
from jevify.errors import SettingError
from jevify.models.lm.dense import DenseDecoder
from jevify.models.lm.fused import fuse
from jevify.models.lm.weights import merge

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]
if triton_runtime.INTERPRETED:
    triton_interpreter.repair()
TILES = [LinearTile(16, 32, 32, split, 4, 2) for split in (1, 2, 3)] + [LinearTile(32, 16, 64, 4, 4, 1)]
# Half a unit in the last place of the largest result, and the order of an fp32 sum.
EPSILON = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 4.5e-3}


def operands(rows, outputs, inner, dtype, *, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, weight, added = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, inner), (outputs, inner), (outputs,))
    )
    return x, weight, added if bias else None


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "bias"), [(5, 123, 123, True), (1, 16, 64, False), (33, 40, 192, True)]
)
def test_the_sum_is_exact_and_rounded_once(tile, dtype, rows, outputs, inner, bias):
    x, weight, added = operands(rows, outputs, inner, dtype, bias=bias)
    found = linear_kernel(x, weight, added, tile)
    wanted = x.double() @ weight.double().T + (0 if added is None else added.double())
    assert found.dtype == dtype
    assert found.shape == (rows, outputs)
    scale = float(wanted.abs().max())
    assert float((found.double() - wanted).abs().max()) <= EPSILON[dtype] * scale
    # As near to the exact result as the reference is.
    reference = float((linear(x, weight, added).double() - wanted).abs().max())
    assert float((found.double() - wanted).abs().max()) <= 2 * reference + 1e-6 * scale


def test_rows_may_lie_apart_and_inputs_stay():
    x, weight, bias = operands(9, 24, 48, torch.float32)
    wide = torch.full((9, 100), float("nan"))
    wide[:, :48] = x
    found = linear_kernel(wide[:, :48], weight, bias, TILES[1])
    assert torch.allclose(found, linear(x, weight, bias), atol=1e-5)
    assert torch.equal(wide[:, :48], x)


def test_no_rows_are_no_launch():
    x, weight, bias = operands(0, 24, 48, torch.float32)
    assert linear_kernel(x, weight, bias, TILES[0]).shape == (0, 24)


def test_what_it_does_not_take_is_refused():
    x, weight, bias = operands(3, 24, 48, torch.float32)
    for wrong in (
        (x[:, :40], weight, bias),
        (x, weight.T.contiguous().T, bias),
        (x, weight, bias[:-1]),
        (x.half(), weight, bias),
        (x.double(), weight.double(), None),
    ):
        with pytest.raises(ValueError, match="linear"):
            linear_kernel(*wrong, TILES[0])
    for sizes in ((8, 32, 32, 1, 4, 2), (16, 32, 32, 0, 4, 2), (16, 32, 32, 1, 3, 2), (16, 32, 48, 1, 4, 2)):
        with pytest.raises(ValueError, match=r"power of two|split"):
            LinearTile(*sizes)


TABLE = {"cpu": {"float32": {"24x48": [[4, [16, 32, 32, 2, 4, 2]], [8, "lt"], [12, "swapped"], [16, "library"]]}}}


def test_the_measured_way_runs_up_to_its_rows():
    launches = []
    measured = choices([(24, 48), (99, 48)], device="cpu", dtype=torch.float32, table=TABLE)
    assert list(measured) == [(24, 48)]
    run = chosen_linear(measured, lambda: launches.append(1))
    for rows, launched in ((0, 0), (1, 1), (4, 1), (5, 0), (9, 0), (13, 0), (40, 0)):
        launches.clear()
        for added in (True, False):
            x, weight, bias = operands(rows, 24, 48, torch.float32, bias=added)
            found = run(x, weight, bias)
            assert found.is_contiguous()
            assert torch.allclose(found, linear(x, weight, bias), atol=1e-5)
        assert len(launches) == 2 * launched


@pytest.mark.parametrize("way", ["lt", "swapped"])
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_other_ways_of_the_library_round_once_too(way, dtype, bias):
    x, weight, added = operands(7, 40, 192, dtype, bias=bias)
    found = chosen_linear({(40, 192): [(16, way)]}, lambda: None)(x, weight, added)
    wanted = x.double() @ weight.double().T + (0 if added is None else added.double())
    assert found.dtype == dtype
    assert float((found.double() - wanted).abs().max()) <= EPSILON[dtype] * float(wanted.abs().max())


def test_the_shipped_table_holds_valid_ways():
    for dtypes in shipped_table().values():
        for dtype, products in dtypes.items():
            assert dtype in ("float16", "bfloat16")
            for ways in products.values():
                assert [rows for rows, _ in ways] == sorted({rows for rows, _ in ways})
                assert all(way in ("library", "lt", "swapped") or LinearTile(*way) for _, way in ways)


def test_a_decoder_multiplies_by_it():
    model = tiny.model("qwen2")
    weights = merge(model)
    layer = weights.layers[0]
    products = [tuple(w.shape) for w in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    table = {"cpu": {"float32": {f"{n}x{k}": [[512, [16, 32, 32, 2, 4, 1]]] for n, k in products}}}
    ops = fused_ops(
        ("linear",),
        device=torch.device("cpu"),
        dtype=torch.float32,
        widths=(48, 16),
        head_size=16,
        products=products,
        table=table,
    )
    tree = TokenTree()
    root = tree.add(range(9))
    tree.add(range(20, 25), root)
    tree.add(range(30, 37), root)
    (step,) = tree.passes(100)
    rows = range(len(step.token_ids))
    found, _ = DenseDecoder(weights, ops).forward(step, rows)
    wanted, _ = DenseDecoder(weights).forward(step, rows)
    assert torch.allclose(found, wanted, atol=2e-5)
    assert ops.launches["linear"] == 4 * len(weights.layers)


def test_it_is_refused_where_the_library_won_everywhere():
    table = {"cpu": {"float32": {"24x48": [[512, "library"]]}}}
    options = {"device": torch.device("cpu"), "dtype": torch.float32, "widths": (48, 16), "head_size": 16}
    with pytest.raises(SettingError, match="the library's own products were the fastest measured on cpu"):
        fused_ops(("linear",), **options, products=[(24, 48)], table=table)


def test_it_is_refused_by_name_where_it_cannot_run():
    with pytest.raises(SettingError, match="--fused-kernels linear has no effect on the forked executor"):
        DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", executor="forked", fused_kernels=("linear",))
    with pytest.raises(SettingError, match="linear: no product of this model was measured on cpu in float32"):
        DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", executor="packed", fused_kernels=("linear",))
    with pytest.raises(SettingError, match="linear: no adapter for transformers' modules takes it"):
        fuse(tiny.model("qwen2"), (*MODULE_KERNELS, "linear"))
    assert "linear" in DecideSettings(executor="packed", fused_kernels=("linear",)).fused_kernels
