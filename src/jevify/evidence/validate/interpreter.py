"""Triton 3.6's interpreter, made to run kernels with loaded loop bounds and bfloat16 values as a GPU would."""

from typing import Any

import torch


def repair() -> None:
    """Patch the interpreter of this process; once is enough, twice does no harm.

    It keeps scalars as arrays of one element and calls int() on them, which NumPy 2.4 no longer allows; it multiplies
    the bits of bfloat16 matrices instead of their values; and it truncates fp32 to bf16 where compiled kernels round to
    nearest even.
    """
    from triton.runtime import interpreter

    if getattr(interpreter, "repaired", False):
        return
    interpreter.repaired = True
    patch_tensor, create_dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot
    convert = interpreter._convert_float

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        widen = [builder.cast_impl(x, interpreter.tl.float32) if x.dtype.name == "bf16" else x for x in (a, b)]
        return create_dot(builder, *widen, *rest)

    def converted(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(values, source, target, mode)
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter._convert_float = converted
