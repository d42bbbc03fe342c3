"""One storage for the weights: the merged products of the packed runner, with the transformers parameters as views."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from jevify.errors import InputError


@dataclass(frozen=True)
class LayerWeights:
    """Tensors of one decoder layer. Products are [out, in]; a bias or q/k norm the model lacks is None."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class DenseWeights:
    """All weights of a dense model and the numbers needed to run it.

    `owners` are the places where the model keeps its parameters and rotary frequencies, and `pointers` their addresses
    when they were merged.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    head_bias: Tensor | None
    inv_freq: Tensor
    rope_scaling: float
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    pointers: tuple[int, ...]
    owners: tuple[tuple[dict[str, Any], str], ...]


_MERGED: "WeakKeyDictionary[nn.Module, DenseWeights]" = WeakKeyDictionary()


@torch.no_grad()
def merge(model: Any) -> DenseWeights:
    """Merge q/k/v and gate/up of a transformers Qwen2, Qwen3 or Llama model, once a model.

    Mutates `model`: its projection parameters become views into the merged tensors, so that both ways of running it
    read one storage. Values do not change. Repeated calls return the same object until the model is moved or recast.
    """
    if model in _MERGED and in_place(_MERGED[model]):
        return _MERGED[model]
    backbone, config = model.base_model, model.config
    head = model.get_output_embeddings()
    layers = tuple(_layer(layer) for layer in backbone.layers)
    owners = _owners(model)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = DenseWeights(
        embedding=backbone.embed_tokens.weight,
        layers=layers,
        norm=backbone.norm.weight,
        head=head.weight,
        head_bias=head.bias,
        inv_freq=backbone.rotary_emb.inv_freq,
        rope_scaling=float(backbone.rotary_emb.attention_scaling),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        eps=config.rms_norm_eps,
        pointers=_pointers(owners),
        owners=owners,
    )
    _MERGED[model] = weights
    return weights


def in_place(weights: DenseWeights) -> bool:
    """Whether every parameter and the rotary frequencies are where `merge` left them."""
    return _pointers(weights.owners) == weights.pointers


def check_in_place(weights: DenseWeights) -> None:
    """Raise InputError when a parameter of the model was moved, recast or replaced since `merge`."""
    if not in_place(weights):
        raise InputError(
            "the model's weights were moved, recast or replaced under this engine; build a new DecisionEngine "
            "(after an in-place change of values, call clear_optimization_cache instead)"
        )


def _owners(model: Any) -> tuple[tuple[dict[str, Any], str], ...]:
    """Where modules keep their tensors: looked up by name, so that a replaced one is seen, and without walking them."""
    parameters = [
        (module._parameters, name)
        for module in model.modules()
        for name, value in module._parameters.items()
        if value is not None
    ]
    return (*parameters, (model.base_model.rotary_emb._buffers, "inv_freq"))


def _pointers(owners: tuple[tuple[dict[str, Any], str], ...]) -> tuple[int, ...]:
    return tuple(owner[name].data_ptr() for owner, name in owners)


def _layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = _join(attention.q_proj, attention.k_proj, attention.v_proj)
    gate_up, gate_up_bias = _join(mlp.gate_proj, mlp.up_proj)
    return LayerWeights(
        input_norm=layer.input_layernorm.weight,
        qkv=qkv,
        qkv_bias=qkv_bias,
        q_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        post_norm=layer.post_attention_layernorm.weight,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=mlp.down_proj.weight,
        down_bias=mlp.down_proj.bias,
    )


def _join(*parts: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Concatenate the rows of `parts` and leave their parameters as views of the result."""
    weight = torch.cat([part.weight for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    row = 0
    for part in parts:
        rows = slice(row, row + part.out_features)
        part.weight = nn.Parameter(weight[rows], requires_grad=False)
        if bias is not None:
            part.bias = nn.Parameter(bias[rows], requires_grad=False)
        row += part.out_features
    return weight, bias
