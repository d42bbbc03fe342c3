"""The product for few rows at real sizes."""

import pytest
import torch
from torch.nn import functional

from jevify.accel.ops import linear as product
from jevify.accel.ops.linear import LinearTile, linear_kernel

pytestmark = pytest.mark.gpu
TILES = [
    LinearTile(16, 64, 128, 4, 4, 4),
    LinearTile(64, 64, 128, 8, 4, 4),
    LinearTile(128, 128, 64, 1, 8, 3),
    LinearTile(128, 256, 64, 1, 8, 3),
]


def operands(rows, outputs, inner, dtype):
    x = torch.randn(rows, inner, device="cuda").to(dtype)
    weight = (torch.randn(outputs, inner, device="cuda") / inner**0.5).to(dtype)
    return x, weight, torch.randn(outputs, device="cuda").to(dtype)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("outputs", "inner"), [(2048, 1536), (1536, 8960), (123, 200)])
def test_the_sum_is_as_near_as_the_library_s(tile, dtype, outputs, inner):
    for rows in (1, 7, 150, 512):
        x, weight, bias = operands(rows, outputs, inner, dtype)
        exact = functional.linear(x.double(), weight.double(), bias.double())
        reference = (functional.linear(x, weight, bias).double() - exact).abs()
        found = linear_kernel(x, weight, bias, tile)
        error = (found.double() - exact).abs()
        assert float(error.max()) <= 2 * float(reference.max())
        # Rounded once: nearly everywhere the nearest value of the dtype. An fp32 sum of 8,960 products errs by about a
        # thirtieth of the spacing of fp16 values, so that one in twenty may round to the other side.
        assert float((found != exact.to(dtype)).double().mean()) < 0.08
        assert torch.equal(found, linear_kernel(x, weight, bias, tile))


def test_a_graph_holds_it():
    x, weight, bias = operands(150, 1536, 8960, torch.bfloat16)
    linear_kernel(x, weight, bias, TILES[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear_kernel(x, weight, bias, TILES[1])
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(out, linear_kernel(x, weight, bias, TILES[1]))


def test_another_row_count_compiles_nothing():
    def run(rows):
        linear_kernel(*operands(rows, 1536, 1536, torch.bfloat16), TILES[1])

    def compiled():
        kernels = (product._product, product._sum)
        return [len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels]

    run(5)
    before = compiled()
    for rows in (1, 2, 16, 17, 400, 4_096):
        run(rows)
    assert compiled() == before
