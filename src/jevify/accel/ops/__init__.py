"""One file per operation: its contract, its PyTorch reference with the rounding of transformers, its Triton kernel."""

MODULE_KERNELS = ("rmsnorm", "swiglu", "rope", "residual_norm")
"""The fused kernels that adapters on transformers' modules can take, by the name they are asked for."""

KERNELS = (*MODULE_KERNELS, "linear")
"""All of them; `linear` multiplies by the packed executor's merged weights."""
