"""Dense causal language models over packed rows, sharing one weight storage with transformers."""
