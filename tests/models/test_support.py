"""Checkpoints that are refused, by name and reason, before weights are read."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, MistralConfig, Qwen2MoeConfig

import tiny
from jevify.errors import InputError, JevifyError, UnsupportedModelError
from jevify.models.lm.load import Checkpoint, load_config, load_model, load_tokenizer, pick_device, pick_dtype
from jevify.models.lm.support import check_config, check_model

pytestmark = pytest.mark.cpu


def changed(family="llama", **changes):
    config = tiny.config(family)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: GPT2Config(), "model type is 'gpt2'"),
        (lambda: MistralConfig(), "model type is 'mistral'"),
        (lambda: Qwen2MoeConfig(), "model type is 'qwen2_moe'"),
        (
            lambda: tiny.config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
            "sliding-window",
        ),
        (lambda: changed(layer_types=["full_attention", "sliding_attention"]), "hybrid attention"),
        (lambda: changed(num_local_experts=8), "mixture of experts"),
        (lambda: changed(quantization_config={"quant_method": "gptq"}), "quantized"),
        (lambda: changed(final_logit_softcapping=30.0), "caps logits"),
        (lambda: changed(hidden_act="gelu"), "activation is 'gelu'"),
        (
            lambda: changed(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "'dynamic'",
        ),
    ],
)
def test_refused_configurations(config, reason):
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        check_config(config(), "some/model")
    assert str(caught.value).startswith("some/model cannot be used: ")


def test_every_reason_is_named():
    with pytest.raises(UnsupportedModelError, match=r"mixture of experts.*caps logits"):
        check_config(changed(num_local_experts=2, final_logit_softcapping=1.0), "m")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_three_families_are_accepted(family):
    check_config(tiny.config(family), "m")
    check_model(tiny.model(family), "m")


def test_a_head_that_is_not_linear_is_refused():
    model = tiny.model("qwen2")
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(UnsupportedModelError, match="head is Sequential, not a linear layer"):
        check_model(model, "m")


def test_offload_and_wrapped_layers_are_refused():
    model = tiny.model("qwen2")
    model.base_model.layers[0].mlp.to("meta")
    with pytest.raises(UnsupportedModelError, match="spread over cpu, meta"):
        check_model(model, "m")

    class Linear8bit(torch.nn.Linear):
        pass

    model = tiny.model("qwen2")
    model.base_model.layers[0].mlp.down_proj = Linear8bit(72, 48)
    with pytest.raises(UnsupportedModelError, match=r"wrapped \(Linear8bit\)"):
        check_model(model, "m")


def test_a_missing_checkpoint_is_one_message(tmp_path):
    nowhere = Checkpoint("nowhere", str(tmp_path / "nowhere"), local_files_only=True)
    assert nowhere.options()["trust_remote_code"] is False
    for load in (load_config, load_tokenizer):
        with pytest.raises(JevifyError, match=r"of 'nowhere' could not be loaded.*jevify models pull nowhere"):
            load(nowhere)


def load(folder):
    checkpoint = Checkpoint("some model", str(folder), local_files_only=True)
    config, cpu = load_config(checkpoint), torch.device("cpu")
    return load_model(checkpoint, config, device=cpu, dtype=torch.float32, attention="sdpa")


def test_missing_and_misshapen_tensors_are_refused_not_made_up(tmp_path):
    tiny.model("qwen2").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(JevifyError, match=r"1 tensors are missing .*: model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 5)
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(JevifyError, match="weights of 'some model' could not be loaded"):
        load(tmp_path)


def test_pickled_weights_are_never_read(tmp_path):
    model = tiny.model("qwen2")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(JevifyError, match="weights of 'some model' could not be loaded"):
        load(tmp_path)


def test_a_broken_tokenizer_is_one_message(tmp_path):
    tiny.tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": 7}')
    with pytest.raises(JevifyError, match="tokenizer of 'some model' could not be loaded"):
        load_tokenizer(Checkpoint("some model", str(tmp_path), local_files_only=True))


def test_damaged_weights_are_one_message(tmp_path):
    tiny.model("llama").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\xff" * 64 + weights.read_bytes()[64:])
    checkpoint = Checkpoint("damaged", str(tmp_path), local_files_only=True)
    config, cpu = load_config(checkpoint), torch.device("cpu")
    with pytest.raises(JevifyError, match="weights of 'damaged' could not be loaded"):
        load_model(checkpoint, config, device=cpu, dtype=torch.float32, attention="sdpa")


def test_a_folder_without_weights_is_one_message(tmp_path):
    tiny.config("llama").save_pretrained(tmp_path)
    checkpoint = Checkpoint("folder", str(tmp_path), local_files_only=True)
    with pytest.raises(JevifyError, match=r"weights of .* could not be loaded"):
        load_model(
            checkpoint,
            load_config(checkpoint),
            device=torch.device("cpu"),
            dtype=torch.float32,
            attention="sdpa",
        )


@pytest.mark.parametrize("device", ["tpu", "mps", "cuda:x", "cuda:99"])
def test_unknown_devices_are_refused(device):
    with pytest.raises(InputError, match="device"):
        pick_device(device)


def test_dtypes():
    cpu = torch.device("cpu")
    assert pick_dtype("auto", cpu) is torch.float32
    assert pick_dtype("bfloat16", cpu) is torch.bfloat16
    with pytest.raises(InputError, match="float8"):
        pick_dtype("float8", cpu)
