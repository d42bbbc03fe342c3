"""References against transformers' own modules and against hand-written arithmetic."""

import math

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from jevify.accel.ops.rms_norm import residual_rms_norm, rms_norm
from jevify.accel.ops.rope import rope, rotary_table
from jevify.accel.ops.swiglu import swiglu
from jevify.accel.ops.tree_attention import plan_calls, tree_attention
from jevify.accel.tree import TokenTree

pytestmark = pytest.mark.cpu
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1, 5), (5, 123), (0, 8), (123, 7)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_is_bit_equal_to_transformers(dtype, shape):
    torch.manual_seed(1)
    module = LlamaRMSNorm(shape[-1], eps=1e-5)
    module.weight.data = torch.randn(shape[-1])
    module = module.to(dtype)
    x = torch.randn(*shape).to(dtype) * 3
    assert torch.equal(rms_norm(x, module.weight, 1e-5), module(x))
    strided = torch.randn(shape[0], 2 * shape[1]).to(dtype)[:, ::2]
    assert torch.equal(rms_norm(strided, module.weight, 1e-5), module(strided.contiguous()))


def test_rms_norm_by_hand():
    found = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 10.0]), 0.0)
    root = math.sqrt(12.5)
    assert found[0].tolist() == pytest.approx([3 / root, 40 / root])


def test_rms_norm_rounds_before_the_weight_multiplies():
    x = torch.tensor([[1.0, 1.0039]], dtype=torch.bfloat16)
    weight = torch.tensor([257.0, 259.0]).bfloat16()
    rounded = (x.float() * torch.rsqrt(x.float().pow(2).mean() + 1e-6)).bfloat16()
    assert torch.equal(rms_norm(x, weight, 1e-6), rounded * weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_residual_norm_normalizes_the_rounded_sum(dtype):
    torch.manual_seed(2)
    x, residual, weight = (
        torch.randn(7, 33).to(dtype),
        50 * torch.randn(7, 33).to(dtype),
        torch.randn(33).to(dtype),
    )
    normalized, total = residual_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, residual + x)
    assert torch.equal(normalized, rms_norm(residual + x, weight, 1e-6))
    exact = residual.float() + x.float()
    unrounded = (weight * (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)).to(dtype)
    assert not torch.equal(normalized, unrounded)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_reads_gate_then_up(dtype):
    gate, up = torch.randn(4, 6).to(dtype), torch.randn(4, 6).to(dtype)
    assert torch.equal(swiglu(torch.cat((gate, up), 1)), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3])
def test_rope_is_bit_equal_to_transformers_on_strided_heads(dtype, heads):
    torch.manual_seed(3)
    merged = torch.randn(5, heads + 2, 16).to(dtype)
    x = merged[:, :heads]
    cos, sin = rotary_table(torch.tensor([0, 7, 7, 1000, 3]), 1.0 / 10_000 ** (torch.arange(8) / 8), 1.0, dtype)
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos[None], sin[None])
    assert torch.equal(rope(x, cos, sin), expected[0].transpose(0, 1))


def test_rotary_table_scales_after_the_cosine():
    cos, sin = rotary_table(torch.tensor([2]), torch.tensor([0.5]), 3.0, torch.float32)
    assert cos[0].tolist() == pytest.approx([3 * math.cos(1)] * 2)
    assert sin[0].tolist() == pytest.approx([3 * math.sin(1)] * 2)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 2), (5, 1)])
@pytest.mark.parametrize("budget", [1000, 7])
def test_tree_attention_equals_plain_softmax_over_each_path(heads, kv_heads, budget):
    torch.manual_seed(4)
    tree = TokenTree()
    root = tree.add(range(11))
    first = tree.add(range(11, 16), root)
    tree.add([16], root)
    tree.add([17, 18], first)
    tree.add([19], first)
    tree.add(range(20, 23))
    q, k, v = (torch.randn(len(tree), count, 8, dtype=torch.float64) for count in (heads, kv_heads, kv_heads))
    found = torch.full_like(q, float("nan"))
    carried = []
    for step in tree.passes(budget):
        slots = carried + list(step.token_ids)
        calls = plan_calls(step.blocks, step.carried, q.device, q.dtype)
        rows = torch.tensor(step.token_ids)
        found[rows] = tree_attention(q[rows], k[slots], v[slots], calls, 8**-0.5)
        carried = [slots[slot] for slot in step.keep]
    for index in range(len(tree.segments)):
        path = [token for ancestor in tree.path(index) for token in tree.segments[ancestor].tokens]
        for depth in range(len(path) - len(tree.segments[index].tokens), len(path)):
            token, visible = path[depth], torch.tensor(path[: depth + 1])
            for head in range(heads):
                group = head // (heads // kv_heads)
                weights = (k[visible, group] @ q[token, head] * 8**-0.5).softmax(0)
                assert torch.allclose(found[token, head], weights @ v[visible, group], atol=1e-12)
