"""The physical floor of a pass, from a model's sizes and a machine's limits."""

from types import SimpleNamespace

import pytest

import tiny
from jevify.evidence.expected import RequestSize
from jevify.evidence.floor import H200, Machine, floor_of, layer_parameters, machine_of

pytestmark = pytest.mark.cpu

QWEN = SimpleNamespace(
    num_hidden_layers=28, hidden_size=1536, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960
)
ONE = ((1,), (1,), (1,), (1,))


def test_weights_bound_short_passes_and_arithmetic_long_ones() -> None:
    short = floor_of(QWEN, [RequestSize(0, (64,), ((1,),))], H200, "bfloat16")
    assert short is not None
    # 1.31 G values, two bytes each, at 4.29 TB/s.
    assert layer_parameters(QWEN) == 28 * (1536 * 128 * 28 + 3 * 1536 * 8960)
    assert short.ms == short.weights_ms == pytest.approx(0.611, abs=1e-3)
    size = RequestSize(120, (190,) * 4, ONE)
    long = floor_of(QWEN, [size], H200, "bfloat16")
    assert long is not None
    # 400 rows: the prefix sees itself, each branch the prefix and itself.
    assert size.visible_keys == 120 * 121 // 2 + 4 * (70 * 120 + 70 * 71 // 2)
    wanted = 2 * layer_parameters(QWEN) * 400 + 4 * 28 * 12 * 128 * size.visible_keys
    assert long.ms == long.arithmetic_ms == pytest.approx(wanted / 779e12 * 1e3)
    assert long.ms == pytest.approx(1.355, abs=0.01)
    both = floor_of(QWEN, [size, size], H200, "bfloat16")
    assert both is not None
    assert both.arithmetic_ms == pytest.approx(2 * long.arithmetic_ms)
    assert long.data() == {
        "machine": "NVIDIA H200",
        "weights_ms": 0.6108,
        "arithmetic_ms": round(long.ms, 4),
        "ms": round(long.ms, 4),
    }


def test_leaves_are_rows_that_see_their_whole_question() -> None:
    size = RequestSize(10, (14, 15), ((1, 3), (1, 1)))
    # Prefix 1..10, questions 11..14 and 11..15, two leaf rows at 15 and 16.
    assert size.visible_keys == 55 + (11 + 12 + 13 + 14) + (11 + 12 + 13 + 14 + 15) + (15 + 16)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_counted_weights_are_those_of_the_model(family: str) -> None:
    model = tiny.model(family)
    counted = sum(p.numel() for n, p in model.named_parameters() if "proj" in n and n.endswith("weight"))
    assert layer_parameters(model.config) == counted


def test_no_floor_is_told_where_the_limits_are_not_known() -> None:
    size = [RequestSize(0, (64,), ((1,),))]
    assert machine_of("cpu") is None
    assert floor_of(QWEN, size, None, "bfloat16") is None
    assert floor_of(QWEN, size, Machine("x", 1.0, 1.0), "float32") is None
