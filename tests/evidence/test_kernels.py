"""The kernel cases of a model's shapes, and distance counted in representable numbers."""

import pytest
import torch

from jevify.accel.ops import MODULE_KERNELS, triton_runtime
from jevify.evidence.kernels import DenseShape, Exactness, exactness, kernel_cases

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_distance_counts_representable_numbers(dtype):
    one, eps = torch.tensor([1.0, 0.0, -1.0], dtype=dtype), torch.finfo(dtype).eps
    other = torch.tensor([1 + 2 * eps, -0.0, -1.0], dtype=dtype)
    assert exactness(one, other) == Exactness(pytest.approx(1 / 3), 2)
    tiny = torch.finfo(dtype).smallest_normal * eps
    assert exactness(torch.tensor([tiny], dtype=dtype), torch.tensor([-tiny], dtype=dtype)) == Exactness(1.0, 2)
    assert exactness(one[:0], one[:0]) == Exactness(0.0, 0)


def test_what_has_no_distance_is_refused():
    with pytest.raises(ValueError, match="cannot be compared"):
        exactness(torch.ones(2), torch.ones(2).half())
    with pytest.raises(ValueError, match="NaN"):
        exactness(torch.tensor([torch.nan]), torch.ones(1))


@pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)")
@pytest.mark.parametrize("head_norms", [False, True])
def test_a_case_for_each_kernel_with_the_bytes_it_must_move(head_norms):
    shape = DenseShape(48, 72, 6, 2, 8, head_norms)
    cases = kernel_cases(shape, 5, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert {case.name for case in cases} == set(MODULE_KERNELS)
    for case in cases:
        for found, wanted in zip(case.kernel(*case.inputs), case.reference(*case.inputs), strict=True):
            assert exactness(found, wanted).mismatch <= 0.01
    assert {case.name: case.bytes_moved for case in cases} == {
        "rmsnorm": 2 * (5 * 48 * 2 + 48),
        "residual_norm": 2 * (5 * 48 * 4 + 48),
        "swiglu": 2 * 5 * 72 * 3,
        "rope": 2 * 5 * 8 * (2 * 8 + 2),
    }


def test_copied_inputs_have_the_values_and_strides_of_the_inputs():
    shape = DenseShape(48, 72, 6, 2, 8)
    for case in kernel_cases(shape, 5, dtype=torch.bfloat16, device=torch.device("cpu")):
        for copied, tensor in zip(case.copied_inputs(), case.inputs, strict=True):
            assert torch.equal(copied, tensor)
            assert copied.stride() == tensor.stride()
            assert copied.data_ptr() != tensor.data_ptr()
