"""Triton 3.6's interpreter, made to run kernels with loaded loop bounds and bfloat16 matrix products."""

from typing import Any


def repair() -> None:
    """Patch the interpreter of this process; once is enough, twice does no harm.

    It keeps scalars as arrays of one element and calls int() on them, which NumPy 2.4 no longer allows; and it
    multiplies the bits of bfloat16 matrices instead of their values.
    """
    from triton.runtime import interpreter

    if getattr(interpreter, "repaired", False):
        return
    interpreter.repaired = True
    patch_tensor, create_dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        widen = [builder.cast_impl(x, interpreter.tl.float32) if x.dtype.name == "bf16" else x for x in (a, b)]
        return create_dot(builder, *widen, *rest)

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = dot
