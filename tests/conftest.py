"""Without a GPU, Triton kernels run in Triton's interpreter: it has to be chosen before Triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    from triton.runtime import interpreter
except ImportError:
    interpreter = None


def _round_to_nearest(convert):
    """The interpreter truncates fp32 to bf16 where compiled kernels round to nearest even; make it round."""

    def converted(values, source, target, mode):
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(values, source, target, mode)
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")

    return converted


if interpreter is not None:
    interpreter._convert_float = _round_to_nearest(interpreter._convert_float)
