"""The gated activation of the feed-forward layer (Shazeer 2020, arXiv:2002.05202)."""

from torch import Tensor
from torch.nn import functional


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate and up are the two halves of the last dimension.

    gate_up: [..., 2 I], the merged product. silu is rounded to the dtype before the multiply. Returns [..., I].
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
