"""Write a checkpoint of real shapes and random weights, for measurements of speed where the weights cannot be had.

    python scripts/random_checkpoint.py qwen2.5-1.5b TOKENIZER_FOLDER OUT_FOLDER

Speed and parity may be claimed of it, quality never.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

SHAPES: dict[str, PretrainedConfig] = {
    "qwen2.5-1.5b": Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "qwen3-1.7b": Qwen3Config(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "llama3.2-1b": LlamaConfig(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
}


def main() -> None:
    """Draw the weights with seed 0, in bf16, and save them with the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokenizer", help="a folder with tokenizer.json and a chat template")
    parser.add_argument("folder", help="where to write")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(SHAPES[args.shape], dtype=torch.bfloat16)
    model.save_pretrained(args.folder)
    AutoTokenizer.from_pretrained(args.tokenizer).save_pretrained(args.folder)


if __name__ == "__main__":
    main()
