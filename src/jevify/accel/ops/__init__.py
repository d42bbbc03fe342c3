"""One file per operation: its contract and its PyTorch reference. The references keep the rounding of transformers."""
