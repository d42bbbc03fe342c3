"""A dense causal decoder over one packed row of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.ops.opset import OpSet
from jevify.accel.ops.rope import rotary_table
from jevify.accel.ops.tree_attention import Call, plan_calls, tree_attention
from jevify.accel.tree import Pass
from jevify.models.lm.weights import DenseWeights, LayerWeights


@dataclass(frozen=True)
class KeyValues:
    """Rows carried between passes: a key and a value tensor [C, Hkv, D] for every layer."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class DenseDecoder:
    """Runs Qwen2, Qwen3 and Llama weights over the passes of a token tree.

    Needs no batch dimension, padding or cache object. Not thread-safe only in that the weights must not change during
    a call; it holds no state of its own.
    """

    def __init__(self, weights: DenseWeights, ops: OpSet | None = None) -> None:
        """ops: how the operations run; the references by default."""
        self.weights = weights
        self._ops = ops or OpSet()
        self._scale = weights.head_dim**-0.5

    @torch.inference_mode()
    def forward(
        self, step: Pass, rows: Sequence[int], carried: KeyValues | None = None
    ) -> tuple[Tensor, KeyValues | None]:
        """Run one pass.

        rows: which of the T rows to read out. carried: the key/value rows that `step` expects, as the previous pass
        returned them (None for the first). Returns the final-norm hidden states [len(rows), H] in the weights' dtype
        and the rows to carry on (None when no later pass needs any). Raises ValueError when `carried` is not what
        `step` expects.
        """
        weights = self.weights
        have = carried.keys[0].shape[0] if carried else 0
        if have != step.carried:
            raise ValueError(f"the pass expects {step.carried} carried rows, got {have}")
        device = weights.embedding.device
        token_ids = torch.tensor(step.token_ids, device=device)
        positions = torch.tensor(step.positions, device=device)
        wanted = torch.tensor(rows, dtype=torch.int64, device=device)
        keep = torch.tensor(step.keep, device=device) if step.keep else None
        calls = plan_calls(step.blocks, step.carried, device, weights.embedding.dtype)
        cos, sin = rotary_table(positions, weights.inv_freq, weights.rope_scaling, weights.embedding.dtype)

        residual = functional.embedding(token_ids, weights.embedding)
        hidden = self._ops.rms_norm(residual, weights.layers[0].input_norm, weights.eps)
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(layer, hidden, cos, sin)
            if carried:
                k, v = torch.cat((carried.keys[index], k)), torch.cat((carried.values[index], v))
            if keep is not None:
                kept[0].append(k[keep])
                kept[1].append(v[keep])
            attended = self._attend(q, k, v, calls)
            if index + 1 == len(weights.layers):
                # Nothing reads the other rows any more.
                attended, residual = attended[wanted], residual[wanted]
            hidden, residual = self._feed_forward(layer, attended, residual)
            following = weights.layers[index + 1].input_norm if index + 1 < len(weights.layers) else weights.norm
            hidden, residual = self._ops.residual_rms_norm(hidden, residual, following, weights.eps)
        return hidden, KeyValues(tuple(kept[0]), tuple(kept[1])) if keep is not None else None

    def _project(self, layer: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = self.weights
        heads = (weights.heads, weights.kv_heads, weights.kv_heads)
        merged = functional.linear(hidden, layer.qkv, layer.qkv_bias)
        q, k, v = merged.view(-1, sum(heads), weights.head_dim).split(heads, dim=1)
        return *self._ops.norm_rope(q, k, cos, sin, layer.q_norm, layer.k_norm, weights.eps), v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, calls: Sequence[Call]) -> Tensor:
        return tree_attention(q, k, v, calls, self._scale).flatten(1)

    def _feed_forward(self, layer: LayerWeights, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        projected = functional.linear(attended, layer.out, layer.out_bias)
        hidden, residual = self._ops.residual_rms_norm(projected, residual, layer.post_norm, self.weights.eps)
        gate, up = functional.linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        activated = self._ops.silu_mul(gate, up)
        return functional.linear(activated, layer.down, layer.down_bias), residual
