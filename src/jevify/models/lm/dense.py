"""A dense causal decoder over one packed row of tokens."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jevify.accel.ops.opset import OpSet
from jevify.accel.ops.rope import rotary_table
from jevify.accel.tree import Pass
from jevify.models.lm.attention import AttendRows, Attention, ReferenceAttention
from jevify.models.lm.weights import DenseWeights, LayerWeights


@dataclass(frozen=True)
class KeyValues:
    """Rows carried between passes: a key and a value tensor [C, Hkv, D] for every layer."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


@dataclass(frozen=True)
class PassInputs:
    """One pass as numbers: `table` holds the attention layout, token ids, positions and rows to read, int32.

    tokens and rows count padding too. Two passes of equal `key` differ in the table's contents only, so a captured
    graph can run either.
    """

    table: Tensor
    tokens: int
    rows: int
    keep: tuple[int, ...]
    attend: AttendRows

    @property
    def key(self) -> tuple[object, ...]:
        """What a graph fixes."""
        return (self.tokens, self.rows, self.keep, self.attend.key)


class DenseDecoder:
    """Runs Qwen2, Qwen3 and Llama weights over the passes of a token tree, without batch dimension or padding.

    Holds no state of a request.
    """

    def __init__(self, weights: DenseWeights, ops: OpSet | None = None, attention: Attention | None = None) -> None:
        """ops and attention: how the operations run; the references by default."""
        self.weights = weights
        self._ops = ops or OpSet()
        self.attention = attention or ReferenceAttention(weights.embedding.device, weights.embedding.dtype)
        self._scale = weights.head_dim**-0.5

    def forward(
        self, step: Pass, rows: Sequence[int], carried: KeyValues | None = None
    ) -> tuple[Tensor, KeyValues | None]:
        """Run one pass: `run` of what `prepare` makes of it, copied to the device."""
        inputs = self.prepare(step, rows)
        return self.run(inputs, inputs.table.to(self.weights.embedding.device), carried)

    def prepare(self, step: Pass, rows: Sequence[int], pad_to: int | None = None) -> PassInputs:
        """The inputs of a pass, on the host. rows: which of the T rows to read out.

        pad_to: how many rows to make of the pass, where its attention can pad; what is appended belongs to a segment
        that nobody sees.
        """
        attend = self.attention.plan(step, pad_to)
        padding = (0,) * (attend.rows - len(step.token_ids))
        # An array is made of Python integers several times faster than a tensor.
        numbers = array("i", (*step.token_ids, *padding, *step.positions, *padding, *rows))
        rest = torch.frombuffer(numbers, dtype=torch.int32)
        # The layout first: its kernel wants it aligned.
        return PassInputs(torch.cat((attend.table, rest)), attend.rows, len(rows), step.keep, attend)

    @torch.inference_mode()
    def run(
        self, inputs: PassInputs, table: Tensor, carried: KeyValues | None = None
    ) -> tuple[Tensor, KeyValues | None]:
        """Run the pass whose table, of `inputs`' key, lies on the device as `table`.

        carried: the key/value rows that the pass expects, as the previous pass returned them (None for the first).
        Returns the final-norm hidden states [rows, H] in the weights' dtype and the rows to carry on (None when no
        later pass needs any). Raises ValueError when `carried` is not what the pass expects. Nothing here waits for the
        device.
        """
        weights, ops = self.weights, self._ops
        have = carried.keys[0].shape[0] if carried else 0
        if have != inputs.attend.carried:
            raise ValueError(f"the pass expects {inputs.attend.carried} carried rows, got {have}")
        sizes = (inputs.attend.table.numel(), inputs.tokens, inputs.tokens, inputs.rows)
        layout, token_ids, positions, wanted = table.split(sizes)
        attend = inputs.attend.on(layout)
        # Carrying on exactly what was carried in copies nothing.
        passed_on = carried if inputs.keep == tuple(range(have)) else None
        keep = torch.tensor(inputs.keep, device=table.device) if inputs.keep and passed_on is None else None
        cos, sin = rotary_table(positions, weights.inv_freq, weights.rope_scaling, weights.embedding.dtype)

        residual = functional.embedding(token_ids, weights.embedding)
        hidden = ops.rms_norm(residual, weights.layers[0].input_norm, weights.eps)
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(layer, hidden, cos, sin)
            past = (carried.keys[index], carried.values[index]) if carried else None
            if keep is not None:
                kept[0].append((torch.cat((past[0], k)) if past else k)[keep])
                kept[1].append((torch.cat((past[1], v)) if past else v)[keep])
            attended = attend(q, k, v, past, self._scale).flatten(1)
            if index + 1 == len(weights.layers):
                # Nothing reads the other rows any more.
                attended, residual = attended.index_select(0, wanted), residual.index_select(0, wanted)
            hidden, residual = self._feed_forward(layer, attended, residual)
            following = weights.layers[index + 1].input_norm if index + 1 < len(weights.layers) else weights.norm
            hidden, residual = ops.residual_rms_norm(hidden, residual, following, weights.eps)
        return hidden, passed_on if keep is None else KeyValues(tuple(kept[0]), tuple(kept[1]))

    def activation_bytes(self, tokens: int) -> int:
        """A conservative guess of the memory that one pass over `tokens` rows needs beside the weights.

        Keys and values of every layer, and the widest activations of one.
        """
        weights = self.weights
        size = weights.embedding.element_size()
        key_values = 2 * len(weights.layers) * weights.kv_heads * weights.head_dim
        widest = 4 * weights.norm.shape[0] + 3 * weights.layers[0].gate_up.shape[0]
        return tokens * (key_values + widest) * size

    def _project(self, layer: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = self.weights
        heads = (weights.heads, weights.kv_heads, weights.kv_heads)
        merged = self._ops.linear(hidden, layer.qkv, layer.qkv_bias)
        q, k, v = merged.view(-1, sum(heads), weights.head_dim).split(heads, dim=1)
        return *self._ops.norm_rope(q, k, cos, sin, layer.q_norm, layer.k_norm, weights.eps), v

    def _feed_forward(self, layer: LayerWeights, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        projected = self._ops.linear(attended, layer.out, layer.out_bias)
        hidden, residual = self._ops.residual_rms_norm(projected, residual, layer.post_norm, self.weights.eps)
        gate, up = self._ops.linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        activated = self._ops.silu_mul(gate, up)
        return self._ops.linear(activated, layer.down, layer.down_bias), residual
