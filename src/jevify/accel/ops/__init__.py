"""One file per operation: its contract, its PyTorch reference with the rounding of transformers, its Triton kernel."""

# The fused kernels by the name they are asked for.
KERNELS = ("rmsnorm", "swiglu", "rope", "residual_norm")
