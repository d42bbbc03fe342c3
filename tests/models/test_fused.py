"""Fused kernels on a transformers model: the same outputs, on that instance only, and gone when undone."""

import pytest
import torch
from transformers import DynamicCache

import tiny
from jevify.accel.ops import MODULE_KERNELS, triton_runtime
from jevify.errors import SettingError, UnsupportedModelError
from jevify.models.lm.cache import cache_argument
from jevify.models.lm.fused import Fusion, fuse, model_ops

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]
CHOICES = [*((name,) for name in MODULE_KERNELS), ("rmsnorm", "residual_norm"), MODULE_KERNELS]
IDS = torch.randint(0, 700, (3, 9), generator=torch.Generator().manual_seed(1))
# Norms of the three layers and the last one; two more a layer for the heads of qwen3.
NORMS = {"llama": 7, "llama-biased": 7, "llama-yarn": 7, "qwen2": 7, "qwen3": 13}


@torch.no_grad()
def states(model, ids=IDS, **options):
    return model(ids, output_hidden_states=True, **options).hidden_states


def forwards(model):
    return [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("kernels", CHOICES)
def test_hidden_states_stay_and_undo_restores_the_bits(family, kernels):
    model = tiny.model(family)
    wanted = states(model)
    with fuse(model, kernels) as fusion:
        found = states(model)
    assert not forwards(model)
    assert all(fusion.ops.launches.values())
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)
    for again, theirs in zip(states(model), wanted, strict=True):
        assert torch.equal(again, theirs)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_keeps_nearly_every_bit(family, dtype):
    model = tiny.model(family, dtype=dtype)
    wanted = torch.cat(states(model))
    with fuse(model):
        found = torch.cat(states(model))
    assert (found != wanted).float().mean() < 0.01
    torch.testing.assert_close(found, wanted, atol=64 * torch.finfo(dtype).eps, rtol=0)


def test_each_kernel_runs_where_it_should():
    for family in tiny.FAMILIES:
        model = tiny.model(family)
        for kernels, launches in [
            (("rmsnorm",), {"rmsnorm": NORMS[family]}),
            (("swiglu",), {"swiglu": 3}),
            (("rope",), {"rope": 3}),
            (("residual_norm",), {"residual_norm": 6}),
            # The rope kernel takes the norms of the heads with it, the sums take all norms but the first.
            (MODULE_KERNELS, {"rmsnorm": 1, "swiglu": 3, "rope": 3, "residual_norm": 6}),
        ]:
            with fuse(model, kernels) as fusion:
                model(IDS)
            assert fusion.ops.launches == launches


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_cache_padding_and_both_attentions(family, attention):
    model = tiny.model(family)
    model.set_attn_implementation(attention)
    mask = torch.ones(3, 13, dtype=torch.long)
    mask[1, 11:] = mask[2, 10:] = 0

    def run():
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model.base_model(IDS, use_cache=True, **{cache_argument(model): cache})
            output = model.base_model(IDS[:, :4], attention_mask=mask, use_cache=True, **{cache_argument(model): cache})
        assert cache.get_seq_length() == 13
        return output.last_hidden_state

    wanted = run()
    with fuse(model):
        found = run()
    seen = mask[:, 9:].bool()
    torch.testing.assert_close(found[seen], wanted[seen], atol=5e-6, rtol=0)


def test_positions_of_its_own_for_each_row():
    model = tiny.model("qwen3")
    positions = torch.arange(9) + torch.tensor([[0], [5], [100]])
    wanted = states(model, position_ids=positions)[-1]
    with fuse(model, ("rope",)):
        torch.testing.assert_close(states(model, position_ids=positions)[-1], wanted, atol=5e-6, rtol=0)


def test_another_model_of_the_class_and_a_base_model():
    fused, other = tiny.model("llama"), tiny.model("llama")
    fusion = fuse(fused.base_model, ("swiglu",))
    wanted = states(other)[-1]
    assert fusion.ops.launches == {"swiglu": 0}
    assert not forwards(other)
    torch.testing.assert_close(states(fused)[-1], wanted, atol=5e-6, rtol=0)
    assert fusion.ops.launches == {"swiglu": 3}
    fusion.undo()
    fusion.undo()
    assert not forwards(fused)


def test_a_hook_that_changes_the_stream_is_heard():
    """The norm carried from one layer to the next must not outlive the sum it belongs to."""
    model = tiny.model("qwen2")
    model.base_model.layers[0].register_forward_hook(lambda _module, _inputs, output: output * 2)
    model.base_model.layers[1].post_attention_layernorm.register_forward_hook(lambda _m, _i, output: output + 1)
    wanted = states(model)[-1]
    with fuse(model, ("residual_norm",)) as fusion:
        torch.testing.assert_close(states(model)[-1], wanted, atol=5e-6, rtol=0)
    assert fusion.ops.launches == {"residual_norm": 6}


def test_a_shorter_run_of_layers_ends_with_the_right_norm():
    model = tiny.model("llama")
    model.config.num_hidden_layers = 2
    with torch.no_grad():
        wanted = model.base_model(IDS, use_cache=False).last_hidden_state
        with fuse(model, ("residual_norm",)):
            found = model.base_model(IDS, use_cache=False).last_hidden_state
    torch.testing.assert_close(found, wanted, atol=5e-6, rtol=0)


def test_an_interrupted_forward_leaves_no_tensor_behind():
    model = tiny.model("llama")

    def fail(*_):
        raise RuntimeError("stop")

    handle = model.base_model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="stop"), fuse(model) as fusion:
        model(IDS)
    assert fusion._sums._waiting is None
    assert not forwards(model)
    handle.remove()


def test_a_second_fusion_is_refused_and_changes_nothing():
    model = tiny.model("llama")
    with fuse(model, ("swiglu",)), pytest.raises(UnsupportedModelError, match="LlamaMLP is replaced already"):
        fuse(model)
    assert not forwards(model)


def test_gradients_are_refused():
    model = tiny.model("llama").requires_grad_(True)
    with fuse(model, ("rmsnorm",)), pytest.raises(ValueError, match="no backward; call it under torch"):
        model(IDS)


def test_modules_of_another_make_are_refused():
    model = tiny.model("llama")
    model.base_model.layers[1].mlp.__class__ = type("MyMLP", (type(model.base_model.layers[1].mlp),), {})
    with pytest.raises(UnsupportedModelError, match="it has a MyMLP from"):
        Fusion(model, model_ops(model, ("swiglu",)))
    model.config.hidden_act = "gelu"
    with pytest.raises(UnsupportedModelError, match="its activation is 'gelu'"):
        fuse(model, ("rope",))


def test_a_dtype_without_kernels_is_refused_by_name():
    with pytest.raises(SettingError, match=r"fused kernel rope: torch.float64 is not supported"):
        fuse(tiny.model("llama", dtype=torch.float64), ("rope",))
