"""One file per operation: its contract, its PyTorch reference with the rounding of transformers, its Triton kernel."""
