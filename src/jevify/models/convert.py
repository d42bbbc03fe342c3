"""A Llama checkpoint in a GGUF file becomes a folder that transformers loads without the GGUF route.

transformers can read GGUF itself, but needs a further package for it, leaves the wrapper of a quantized model
around the weights, and builds the tokenizer with GPT-2's pre-tokenizer, which splits runs of spaces and
digits differently from the one that SmolLM2 was trained with. Every value here is the dequantized one,
exactly, in float32.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jevify.errors import UnsupportedModelError
from jevify.models.progress import Progress, Silent

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from numpy.typing import NDArray
    from transformers import LlamaConfig, PreTrainedTokenizerFast

# Raised when the same GGUF file gives other files than before, so that older folders are made anew.
CONVERSION = 1

WEIGHTS_NAME = "model.safetensors"

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(gguf: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write config, generation config, tokenizer, chat template and float32 weights of `gguf` into `folder`.

    A tied head is not stored twice. The files may be half-written when this raises: OSError, or
    UnsupportedModelError for anything but a Llama model with the SmolLM tokenizer.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import GenerationConfig

    progress = progress or Silent()
    progress.stage(f"Reading {gguf.name} and building its tokenizer", None)
    reader = GGUFReader(gguf)
    if _field(reader, "general.architecture") != "llama":
        raise UnsupportedModelError(f"{gguf.name} holds a {_field(reader, 'general.architecture')} model, not a Llama")
    config = _config(reader)
    tokenizer = _tokenizer(reader)
    save_file(_tensors(reader, config, progress), folder / WEIGHTS_NAME, metadata={"format": "pt"})
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _field(reader: "GGUFReader", key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise UnsupportedModelError(f"the GGUF file has no field {key}")
    return field.contents()


def _config(reader: "GGUFReader") -> "LlamaConfig":
    import numpy as np
    from transformers import LlamaConfig

    epsilon = _field(reader, "llama.attention.layer_norm_rms_epsilon")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        vocab_size=_field(reader, "llama.vocab_size"),
        hidden_size=_field(reader, "llama.embedding_length"),
        intermediate_size=_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=_field(reader, "llama.block_count"),
        num_attention_heads=_field(reader, "llama.attention.head_count"),
        num_key_value_heads=_field(reader, "llama.attention.head_count_kv"),
        head_dim=_field(reader, "llama.rope.dimension_count"),
        max_position_embeddings=_field(reader, "llama.context_length"),
        # The shortest decimal of the stored float32: 1e-05, as it was published.
        rms_norm_eps=float(str(np.float32(epsilon))),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base")},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
    )


def _tensors(reader: "GGUFReader", config: "LlamaConfig", progress: Progress) -> dict[str, "NDArray[np.float32]"]:
    import numpy as np
    from gguf.quants import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    progress.stage("Converting the weights", sum(4 * int(tensor.n_elements) for tensor in reader.tensors))
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        stem = tensor.name.removesuffix(".weight")
        if stem in _TOP:
            name = _TOP[stem]
        else:
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{_LAYER[part]}"
            if part in heads:
                values = _halves_from_pairs(values, heads[part])
        tensors[f"{name}.weight"] = np.ascontiguousarray(values, dtype="<f4")
        progress.advance(values.nbytes)
    return tensors


def _halves_from_pairs(weight: "NDArray[np.float32]", heads: int) -> "NDArray[np.float32]":
    """Rows (heads * dim, hidden) from GGUF's rotary pairs (2i, 2i+1) to transformers' (i, i + dim/2)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(reader: "GGUFReader") -> "PreTrainedTokenizerFast":
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    kind = (_field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UnsupportedModelError(f"the GGUF file's tokenizer is {'/'.join(kind)}; only gpt2/smollm is converted")
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    types = _field(reader, "tokenizer.ggml.token_type")
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind == TokenType.CONTROL
        ]
    )

    def token_of(role: str) -> str:
        return str(tokens[_field(reader, f"tokenizer.ggml.{role}_token_id")])

    # No post-processor: SmolLM2 puts nothing around a text (tokenizer.ggml.add_bos_token is false).
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=token_of("bos"),
        eos_token=token_of("eos"),
        unk_token=token_of("unknown"),
        pad_token=token_of("padding"),
        chat_template=_field(reader, "tokenizer.chat_template"),
        model_max_length=_field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
