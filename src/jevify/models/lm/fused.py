"""Fused kernels on the modules of one transformers model, put on and taken off; its class stays as it is."""

import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from jevify.accel.ops import KERNELS, MODULE_KERNELS
from jevify.accel.ops.opset import OpSet, fused_ops
from jevify.errors import SettingError, UnsupportedModelError
from jevify.models.lm.shared_prefix import SharedPrefix
from jevify.models.lm.support import check_config

_Forward = Callable[..., Any]


def fuse(model: Any, kernels: Collection[str] = MODULE_KERNELS) -> "Fusion":
    """Run a dense transformers Qwen2, Qwen3 or Llama model with fused kernels from now on, until `undo`.

    kernels: any of rmsnorm, swiglu, rope, residual_norm. For inference only: the kernels have no backward. Mutates the
    instance (`with fuse(model): ...` undoes it at the end), not its class, its weights or any other model. Hooks keep
    working, except on what a kernel absorbs: the activation (swiglu) and the norms of queries and keys (rope). Until
    undone, whoever calls the model gets the kernels, the oracle of an engine on it included; an engine's own
    `fused_kernels` are on only while it runs. Raises SettingError for a kernel that cannot run here, and
    UnsupportedModelError for a model these adapters do not know.
    """
    if others := [name for name in kernels if name in KERNELS and name not in MODULE_KERNELS]:
        raise SettingError(f"fused kernel {others[0]}: no adapter for transformers' modules takes it")
    fusion = Fusion(model, model_ops(model, kernels))
    fusion.apply()
    return fusion


def model_ops(model: Any, kernels: Collection[str]) -> OpSet:
    """The operations of `model` with the named kernels in place of their references. Raises SettingError."""
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads * head_size
    keys = 2 * config.num_key_value_heads * head_size
    return fused_ops(
        kernels,
        device=model.device,
        dtype=model.dtype,
        widths=(hidden, head_size),
        head_size=head_size,
        # As the packed executor merges them.
        products=((heads + keys, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)),
    )


class Fusion:
    """The kernels of `ops` on one model, active between `apply` and `undo`, or inside a `with` block.

    Other threads must keep off the model while it is applied or undone. Raises UnsupportedModelError at construction
    for a model that is not transformers' own dense Qwen2, Qwen3 or Llama.
    """

    def __init__(self, model: Any, ops: OpSet, shared: SharedPrefix | None = None) -> None:
        """shared: lets the attention of the layers read a prefix in place while it says so."""
        self.ops = ops
        self._sums = _Sums(ops)
        self._active = False
        name = model.name_or_path or type(model).__name__
        check_config(model.config, name)
        self._forwards = list(_forwards(model.base_model, ops, self._sums, shared))
        source = f"transformers.models.{model.config.model_type}.modeling_{model.config.model_type}"
        for module, _ in self._forwards:
            if type(module).__module__ != source:
                raise UnsupportedModelError(
                    f"{name} cannot be fused: it has a {type(module).__name__} from {type(module).__module__}, and "
                    f"the adapters know those of {source} only"
                )

    def obstacle(self) -> str | None:
        """Why `apply` would refuse now; None when it would not."""
        for module, _ in self._forwards:
            if "forward" in vars(module):
                return (
                    f"the forward of a {type(module).__name__} is replaced already, by another fusion, by a "
                    "kernel of the hub or by offloading; undo that first"
                )
        return None

    def apply(self) -> "Fusion":
        """Put the kernels on. Raises UnsupportedModelError, with nothing changed, where a forward is replaced."""
        if reason := self.obstacle():
            raise UnsupportedModelError(reason)
        for module, forward in self._forwards:
            vars(module)["forward"] = forward
        self._active = True
        return self

    def undo(self) -> None:
        """Take the kernels off: the modules run what their class says. Nothing happens when they are off."""
        self._active = False
        self._sums.clear()
        for module, forward in self._forwards:
            if vars(module).get("forward") is forward:
                del vars(module)["forward"]

    def __enter__(self) -> "Fusion":
        """Apply, unless `fuse` has."""
        return self if self._active else self.apply()

    def __exit__(self, *_: object) -> None:
        """Undo."""
        self.undo()


class _Sums:
    """Carries a normalized residual sum from where it is made to the norm module that would compute it again.

    It is handed out for the very tensor and norm it was computed with and for nothing else, so a module in between
    that changes the stream merely costs the norm's own computation.
    """

    def __init__(self, ops: OpSet) -> None:
        self._ops = ops
        self._waiting: tuple[Tensor, nn.Module, Tensor] | None = None

    def add(self, x: Tensor, residual: Tensor, norm: Any) -> Tensor:
        """residual + x, with its norm kept for `norm`."""
        normalized, total = self._ops.residual_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
        self._waiting = (total, norm, normalized)
        return total

    def normalize(self, x: Tensor, norm: Any) -> Tensor:
        """The norm of x, taken from the last sum where x is that sum."""
        if (waiting := self._waiting) is not None and waiting[0] is x and waiting[1] is norm:
            self._waiting = None
            return waiting[2]
        return self._ops.rms_norm(x, norm.weight, norm.variance_epsilon)

    def clear(self) -> None:
        """Drop what an interrupted forward left."""
        self._waiting = None


def _forwards(
    backbone: Any, ops: OpSet, sums: _Sums, shared: SharedPrefix | None
) -> Iterator[tuple[nn.Module, _Forward]]:
    """Each module that `ops` changes, with what it shall run."""
    layers = list(backbone.layers)
    norms = [backbone.norm]
    following = [layer.input_layernorm for layer in layers[1:]] + norms
    for layer, after in zip(layers, following, strict=True):
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        if "residual_norm" in ops.kernels:
            yield layer, _layer(layer, after, sums)
        if "swiglu" in ops.kernels:
            yield layer.mlp, _mlp(layer.mlp, ops)
        if "rope" in ops.kernels or shared is not None:
            yield layer.self_attn, _attention(layer.self_attn, ops, shared)
        elif "rmsnorm" in ops.kernels:
            norms += [getattr(layer.self_attn, name) for name in ("q_norm", "k_norm") if hasattr(layer.self_attn, name)]
    if "rmsnorm" in ops.kernels or "residual_norm" in ops.kernels:
        yield from ((norm, _norm(norm, sums)) for norm in norms)


def _norm(norm: Any, sums: _Sums) -> _Forward:
    def forward(hidden_states: Tensor) -> Tensor:
        return sums.normalize(hidden_states, norm)

    return forward


def _layer(layer: Any, after: nn.Module, sums: _Sums) -> _Forward:
    def forward(hidden_states: Tensor, **kwargs: Any) -> Tensor:
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)
        stream = sums.add(attended, hidden_states, layer.post_attention_layernorm)
        return sums.add(layer.mlp(layer.post_attention_layernorm(stream)), stream, after)

    return forward


def _mlp(mlp: Any, ops: OpSet) -> _Forward:
    def forward(x: Tensor) -> Tensor:
        return mlp.down_proj(ops.silu_mul(mlp.gate_proj(x), mlp.up_proj(x)))

    return forward


def _attention(attention: Any, ops: OpSet, shared: SharedPrefix | None) -> _Forward:
    eager = sys.modules[type(attention).__module__].eager_attention_forward
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)

    def forward(
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # Newer releases say `cache`.
        cache = kwargs.pop("cache", kwargs.pop("past_key_values", None))
        batch, width = hidden_states.shape[:2]
        split = (batch, width, -1, attention.head_dim)
        q, k = (
            project(hidden_states).view(batch * width, -1, attention.head_dim)
            for project in (attention.q_proj, attention.k_proj)
        )
        v = attention.v_proj(hidden_states).view(batch * width, -1, attention.head_dim)
        cos, sin = (table.flatten(0, 1) for table in position_embeddings)
        if q_norm is None or k_norm is None:
            q, k = ops.norm_rope(q, k, cos, sin)
        else:
            q, k = ops.norm_rope(q, k, cos, sin, q_norm.weight, k_norm.weight, q_norm.variance_epsilon)
        if shared is not None and shared.active:
            attended = shared.attend(attention.layer_idx, q, k, v, attention.scaling)
            return attention.o_proj(attended.view(batch, width, -1)), None
        q, k, v = (x.view(split).transpose(1, 2) for x in (q, k, v))
        if cache is not None:
            k, v = cache.update(k, v, attention.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager)
        attended, weights = attend(
            attention,
            q,
            k,
            v,
            attention_mask,
            dropout=attention.attention_dropout if attention.training else 0.0,
            scaling=attention.scaling,
            sliding_window=None,
            **kwargs,
        )
        return attention.o_proj(attended.reshape(batch, width, -1).contiguous()), weights

    return forward
