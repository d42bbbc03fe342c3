"""Conversion of a tiny GGUF file whose contents are known."""

import json

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file

from jevify.errors import UnsupportedModelError
from jevify.models.convert import convert_gguf

pytestmark = pytest.mark.cpu

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 8, 2, 1, 4, 12
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "Ġ", "ĠĠ", "ab"]
TEMPLATE = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
PARTS = {
    "attn_norm": ("input_layernorm", (HIDDEN,)),
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD_DIM, HIDDEN)),
    "attn_k": ("self_attn.k_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_v": ("self_attn.v_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_output": ("self_attn.o_proj", (HIDDEN, HEADS * HEAD_DIM)),
    "ffn_norm": ("post_attention_layernorm", (HIDDEN,)),
    "ffn_gate": ("mlp.gate_proj", (INNER, HIDDEN)),
    "ffn_up": ("mlp.up_proj", (INNER, HIDDEN)),
    "ffn_down": ("mlp.down_proj", (HIDDEN, INNER)),
}


def paired(weight, heads):
    """The row order of GGUF: row 2i is transformers' row i of a head, row 2i + 1 its row i + HEAD_DIM / 2."""
    order = []
    for head in range(heads):
        for i in range(HEAD_DIM // 2):
            order += [head * HEAD_DIM + i, head * HEAD_DIM + i + HEAD_DIM // 2]
    return weight[order]


def write(path, tied=True, architecture="llama", pre="smollm"):
    """Write a one-layer model and return its tensors by their names in transformers."""
    random = np.random.default_rng(7)

    def made(shape):
        return random.standard_normal(shape).astype(np.float32)

    writer = GGUFWriter(path, architecture)
    writer.add_vocab_size(len(TOKENS))
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * 7)
    writer.add_token_merges(["a b", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    tensors = {}
    for stem, name in {"token_embd": "model.embed_tokens", "output": "lm_head"}.items():
        if stem != "output" or not tied:
            tensors[f"{name}.weight"] = made((len(TOKENS), HIDDEN))
            writer.add_tensor(f"{stem}.weight", tensors[f"{name}.weight"])
    tensors["model.norm.weight"] = made((HIDDEN,))
    writer.add_tensor("output_norm.weight", tensors["model.norm.weight"])
    for stem, (name, shape) in PARTS.items():
        weight = made(shape)
        tensors[f"model.layers.0.{name}.weight"] = weight
        stored = paired(weight, shape[0] // HEAD_DIM) if stem in ("attn_q", "attn_k") else weight
        writer.add_tensor(f"blk.0.{stem}.weight", np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("tied", [True, False])
def test_weights_and_config_come_back(tmp_path, tied):
    expected = write(tmp_path / "tiny.gguf", tied)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert {value.dtype for value in found.values()} == {np.dtype("float32")}
    config = json.loads((tmp_path / "config.json").read_text())
    facts = {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float32",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {name: config[name] for name in facts} == facts
    assert "quantization_config" not in config


def test_the_tokenizer_splits_digits_before_words_and_keeps_its_special_tokens(tmp_path):
    from transformers import AutoTokenizer

    write(tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    # GPT-2's own pre-tokenizer would keep one space with the digits: "Ġ", "Ġ", "1", "2".
    assert tokenizer.tokenize("ab  12<|im_end|>") == ["ab", "ĠĠ", "1", "2", "<|im_end|>"]
    assert tokenizer.encode("ab") == [9]
    assert {i: token.content for i, token in tokenizer.added_tokens_decoder.items()} == dict(enumerate(TOKENS[:3]))
    assert all(token.special for token in tokenizer.added_tokens_decoder.values())
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (2, 0)
    assert tokenizer.model_max_length == 64
    assert tokenizer.chat_template == TEMPLATE


def test_other_architectures_and_tokenizers_are_refused(tmp_path):
    write(tmp_path / "other.gguf", architecture="gemma")
    with pytest.raises(UnsupportedModelError, match="holds a gemma model"):
        convert_gguf(tmp_path / "other.gguf", tmp_path)
    write(tmp_path / "pre.gguf", pre="llama-bpe")
    with pytest.raises(UnsupportedModelError, match="gpt2/llama-bpe"):
        convert_gguf(tmp_path / "pre.gguf", tmp_path)
