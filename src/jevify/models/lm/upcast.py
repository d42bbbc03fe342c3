"""Running low-precision weights in fp32, one module at a time, without a second copy of the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def float32_forward(model: nn.Module) -> Iterator[None]:
    """Inside the block, every forward of `model` computes in fp32 on upcast weights.

    Each module's parameters are upcast when it is entered and put back when it is left, so at most one module is held
    in fp32 at a time; embedding rows are upcast after the lookup. The parameters themselves are not changed. The
    caller keeps other threads off the model meanwhile.
    """
    handles: list[Any] = []
    restores: list[tuple[nn.Module, _Restore]] = []
    for module in model.modules():
        parameters = {name: value for name, value in module.named_parameters(recurse=False) if value is not None}
        if not parameters or all(value.dtype is torch.float32 for value in parameters.values()):
            continue
        if isinstance(module, nn.Embedding):
            handles.append(module.register_forward_hook(lambda _module, _inputs, output: output.float()))
            continue
        restore = _Restore(parameters)
        restores.append((module, restore))
        handles.append(module.register_forward_pre_hook(_Upcast(parameters)))
        handles.append(module.register_forward_hook(restore))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        # A forward that was left half-way, by an error or an interrupt, ran no hook.
        for module, restore in restores:
            restore(module, None, None)


class _Upcast:
    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters

    def __call__(self, module: nn.Module, _inputs: Any) -> None:
        for name, value in self.parameters.items():
            module._parameters[name] = nn.Parameter(value.float(), requires_grad=False)


class _Restore:
    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters

    def __call__(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        module._parameters.update(self.parameters)
