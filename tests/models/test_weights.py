"""One storage for two ways of running a model."""

import gc

import pytest
import torch

import tiny
from jevify.errors import InputError
from jevify.models.lm.upcast import float32_forward
from jevify.models.lm.weights import check_in_place, merge

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_parameters_become_views_and_keep_their_values(family):
    model = tiny.model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.tensor([[1, 2, 3]])
    expected = model(ids).logits
    weights = merge(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(ids).logits, expected)
    for layer, merged in zip(model.base_model.layers, weights.layers, strict=True):
        q, k, gate, up = (
            layer.self_attn.q_proj,
            layer.self_attn.k_proj,
            layer.mlp.gate_proj,
            layer.mlp.up_proj,
        )
        assert q.weight.data_ptr() == merged.qkv.data_ptr()
        assert k.weight.data_ptr() == merged.qkv[q.out_features :].data_ptr()
        assert up.weight.data_ptr() == merged.gate_up[gate.out_features :].data_ptr()
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in model.parameters()}
    assert sum(storages.values()) == sum(value.numel() * value.element_size() for value in model.parameters())


def test_merging_twice_gives_the_same_storage():
    model = tiny.model("llama")
    assert merge(model) is merge(model)


def test_merged_weights_do_not_keep_a_dropped_model_alive():
    import weakref

    model = tiny.model("llama")
    merge(model)
    watch = weakref.ref(model)
    del model
    gc.collect()
    assert watch() is None


def test_an_in_place_change_is_seen_by_both():
    model = tiny.model("qwen2")
    weights = merge(model)
    with torch.no_grad():
        model.base_model.layers[0].self_attn.v_proj.weight.copy_(torch.ones_like(weights.layers[0].qkv[-16:]))
    assert torch.equal(weights.layers[0].qkv[-16:], torch.ones(16, 48))
    check_in_place(weights)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.to(torch.bfloat16),
        lambda model: setattr(model.base_model.layers[1].mlp.down_proj.weight, "data", torch.zeros(48, 72)),
        lambda model: model.base_model.layers[0].self_attn.q_proj.__setattr__(
            "weight", torch.nn.Parameter(torch.zeros(48, 48))
        ),
    ],
    ids=["recast", "data replaced", "parameter replaced"],
)
def test_a_moved_model_is_refused(change):
    model = tiny.model("qwen2")
    weights = merge(model)
    change(model)
    with pytest.raises(InputError, match="build a new DecisionEngine"):
        check_in_place(weights)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_float32_forward_equals_an_upcast_copy(family):
    low = tiny.model(family, dtype=torch.bfloat16)
    merge(low)
    wide = tiny.model(family, dtype=torch.bfloat16).float()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        expected = wide.base_model(ids).last_hidden_state
        plain = low.base_model(ids).last_hidden_state
        with float32_forward(low):
            found = low.base_model(ids).last_hidden_state
        after = low.base_model(ids).last_hidden_state
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert torch.equal(after, plain)
    check_in_place(merge(low))


def test_a_moved_model_can_be_merged_again():
    model = tiny.model("qwen2")
    first = merge(model)
    model.to(torch.bfloat16)
    second = merge(model)
    assert second is not first
    assert second.layers[0].qkv.dtype is torch.bfloat16
    check_in_place(second)


def test_float32_forward_restores_after_an_error():
    low = tiny.model("llama", dtype=torch.bfloat16)
    weights = merge(low)
    with pytest.raises(IndexError), float32_forward(low):
        low.base_model(torch.tensor([[10_000]]))
    broken = low.base_model.layers[1].mlp.act_fn
    low.base_model.layers[1].mlp.act_fn = None
    with pytest.raises(TypeError), float32_forward(low):
        low.base_model(torch.tensor([[1]]))
    low.base_model.layers[1].mlp.act_fn = broken
    check_in_place(weights)
    assert not low.base_model.layers[0].mlp.down_proj._forward_hooks
