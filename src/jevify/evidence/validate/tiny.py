"""Tiny real models and tokenizers, built in memory."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Turns thinking off the way Qwen3 does, with an empty block.
THINKING = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_CORPUS = [
    "true false yes no True False organ organism billing technical refund please the customer asked for money back",
    "<context> question options answer with the letter of one option only Context Question Options Level",
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z AA AB AC 0 1 2 3 4 5 6 7 8 9 10",
    "The parcel arrived two days late and the box was torn, is the customer unhappy? hello world",
]
# Answers begin after a newline, where a word is another token than after a space.
_CORPUS = (_CORPUS + [line.replace(" ", "\n") for line in _CORPUS]) * 20
_SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip

FAMILIES = ("llama", "llama-biased", "llama-yarn", "qwen2", "qwen3")


@cache
def _bpe() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer.to_str()


def tokenizer(template: str | None = CHATML, **options: Any) -> Any:
    """A byte-level BPE tokenizer of about 700 tokens with `template` as its chat template."""
    options = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **options}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_bpe()), **options)
    made.chat_template = template
    return made


def config(family: str, **changes: Any) -> Any:
    """A configuration with odd sizes: one KV head for llama, llama3 and yarn rope scaling, biases, q/k norms."""
    common = {
        "vocab_size": 720,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "max_position_embeddings": 4096,
    }
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    made: dict[str, Callable[[], Any]] = {
        "llama": lambda: LlamaConfig(
            **{
                **common,
                "num_key_value_heads": 1,
                "rope_parameters": llama3,
                "tie_word_embeddings": True,
                **changes,
            }
        ),
        "llama-biased": lambda: LlamaConfig(
            **{**common, "num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True, **changes}
        ),
        "llama-yarn": lambda: LlamaConfig(**{**common, "num_key_value_heads": 2, "rope_parameters": yarn, **changes}),
        "qwen2": lambda: Qwen2Config(**{**common, "num_key_value_heads": 2, **changes}),
        "qwen3": lambda: Qwen3Config(**{**common, "num_key_value_heads": 3, "head_dim": 16, **changes}),
    }
    return made[family]()


def model(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model with random weights whose norms and biases are not their trivial initial values."""
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config(family, **changes))
    for parameter in made.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return made.to(dtype).eval().requires_grad_(False)
