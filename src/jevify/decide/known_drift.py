"""The drift of an engine's execution paths, as far as it is known."""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers

from jevify import __version__
from jevify.decide import drift_store
from jevify.decide.drift import NO_DRIFT, Drift
from jevify.decide.settings import BOUNDS_OF_REQUESTS, DecideSettings

# Values read of each tensor: enough that tuned weights differ in some.
_SAMPLED = 1_024
# Settings that change no score; every other one is part of what the drift depends on.
_NOT_ARITHMETIC = ("stable", "strict", "temperature", *BOUNDS_OF_REQUESTS)
_FINGERPRINTS: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()


class KnownDrift:
    """Looks up the drift of a path, by executor name: what this engine measured, or what the user's cache holds."""

    def __init__(
        self, model: Any, settings: DecideSettings, *, name: str, revision: str | None, tree_attention: str
    ) -> None:
        """tree_attention: the name of what packed rows, and branches beside a shared prefix, attend with."""
        self._model, self._settings = model, settings
        self._name, self._revision, self._tree_attention = name, revision, tree_attention
        self._found: dict[tuple[str, str], Drift | None] = {}

    def of(self, executor: str) -> Drift | None:
        """The drift, or None while it is unknown. The cache is read once for each path and state of the weights."""
        if executor == "oracle" or (executor == "independent" and self._model.dtype is torch.float32):
            return NO_DRIFT
        place = (executor, fingerprint(self._model))
        if place not in self._found:
            self._found[place] = drift_store.find(self.key(executor))
        return self._found[place]

    def keep(self, executor: str, drift: Drift) -> None:
        """Remember what was measured, here and in the user's cache."""
        self._found[executor, fingerprint(self._model)] = drift
        drift_store.keep(self.key(executor), drift)

    def key(self, executor: str) -> Mapping[str, Any]:
        """All that the drift depends on, JSON-ready; nothing of any request."""
        device = self._model.device
        settings = asdict(self._settings.kept_by(executor))
        return {
            "jevify": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "model": self._name,
            "revision": self._revision,
            "weights": fingerprint(self._model),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "executor": executor,
            "module_attention": self._model.config._attn_implementation,
            "tree_attention": self._tree_attention if executor in ("packed", "forked") else None,
            "settings": {name: value for name, value in settings.items() if name not in _NOT_ARITHMETIC},
        }


@torch.no_grad()
def fingerprint(model: Any) -> str:
    """SHA-256 in hex over names, shapes and evenly spaced values of every tensor, computed once a model.

    Bits, not norms: the last digits of a sum depend on the device and its threads. After an in-place change call
    `forget_fingerprint`.
    """
    if model not in _FINGERPRINTS:
        digest = hashlib.sha256()
        samples = []
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            flat = tensor.detach().reshape(-1)
            samples.append(flat[:: max(1, flat.numel() // _SAMPLED)].contiguous().view(torch.uint8))
        # One copy to the host, whatever the number of tensors.
        digest.update(torch.cat(samples).cpu().numpy().tobytes())
        _FINGERPRINTS[model] = digest.hexdigest()
    return _FINGERPRINTS[model]


def forget_fingerprint(model: Any) -> None:
    """The weights have changed: compute the fingerprint anew when it is next needed."""
    _FINGERPRINTS.pop(model, None)


def _cpu() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {capability}, {torch.get_num_threads()} threads"
