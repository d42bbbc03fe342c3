"""Prefix and branch forwards on the transformers modules: eagerly, or captured from token ids to candidate logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jevify.accel.graphs import GraphPool
from jevify.accel.transfer import pinned
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Tokens
from jevify.errors import SettingError
from jevify.models.lm.attention import AttendRows, KernelAttention
from jevify.models.lm.cache import cache_argument, can_share, fork, key_value_bytes, new_cache, stacked, unstacked
from jevify.models.lm.shared_prefix import SharedPrefix, branch_pass


class Prefix:
    """A prefix after its forward: a cache for copies of it, and its rows [layers, 2, Hkv, P, D] for readers in place.

    Given as either; the other is made when it is asked for first. replayed: whether a graph ran it.
    """

    def __init__(
        self, model: Any, tokens: int, *, cache: Any = None, rows: Tensor | None = None, replayed: bool = False
    ) -> None:
        self._model, self.tokens, self.replayed = model, tokens, replayed
        self._cache, self._rows = cache, rows

    @property
    def cache(self) -> Any:
        """A dense cache of one row."""
        if self._cache is None:
            self._cache = unstacked(self._model, self.rows, 1)
        return self._cache

    @property
    def rows(self) -> Tensor:
        """Keys and values as `stacked` gives them."""
        if self._rows is None:
            self._rows = stacked(self._cache)
        return self._rows


@dataclass(frozen=True)
class Batch:
    """Branches to run together, and what is read of them.

    rows: tokens after the prefix. reads: (row, column) of each hidden row wanted. candidates: tokens whose logits are
    needed of each. leaf_reads: which reads need a log-normalizer too.
    """

    rows: tuple[Tokens, ...]
    reads: tuple[tuple[int, int], ...]
    candidates: Tokens
    leaf_reads: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns of the padded batch."""
        return max(map(len, self.rows))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(row) for row in self.rows]

    @property
    def padded(self) -> list[Tokens]:
        """The rows, padded on the right."""
        return [row + (0,) * (self.width - len(row)) for row in self.rows]

    @property
    def places(self) -> list[int]:
        """The reads as rows of the flattened batch."""
        return [row * self.width + column for row, column in self.reads]


class ForkedForward:
    """The forwards of `ForkedExecutor`; see there for the arguments."""

    def __init__(
        self,
        model: Any,
        head: AnswerHead,
        *,
        efficient_cache: bool,
        strict: bool,
        attention: KernelAttention | None,
        shared: SharedPrefix | None,
        graphs: GraphPool | None,
    ) -> None:
        self._model, self._head = model, head
        self._efficient, self._strict = efficient_cache, strict
        self._attention, self._shared, self._graphs = attention, shared, graphs
        self._cache_argument = cache_argument(model)
        self._counters: dict[str, Any] = {"deep_copies": 0, "last_copy_fallback": None}

    def counters(self) -> Mapping[str, Any]:
        """Deep copies of the prefix and why the last was made, and how branches attended."""
        attention = {} if self._attention is None else {"attention": self._attention.counters()}
        return {**self._counters, **attention}

    def prefill(self, tokens: Tokens) -> Prefix:
        """Run the prefix."""
        if self._graphs is not None:
            rows = self._graphs.run(
                ("prefix", len(tokens)),
                [pinned(torch.tensor(tokens, dtype=torch.int32), self._model.device)],
                lambda ids: stacked(self._prefix_cache(ids)),
                estimate_bytes=2 * key_value_bytes(self._model, len(tokens)),
            )
            if rows is not None:
                # The next replay of any graph may overwrite it.
                return Prefix(self._model, len(tokens), rows=rows.clone(), replayed=True)
        ids = torch.tensor(tokens, device=self._model.device)
        return Prefix(self._model, len(tokens), cache=self._prefix_cache(ids))

    def branches(self, batch: Batch, prefix: Prefix | None, *, shares: bool) -> tuple[Tensor, Tensor, bool]:
        """Logits [reads, candidates] and log-normalizers [leaf reads] of a batch, fp32 on the device.

        shares: whether the layers have the adapters that read a prefix in place. The third says whether a graph ran it;
        then the tensors live in its memory until the next forward.
        """
        planned = self._plan(batch, prefix) if shares else None
        if self._graphs is not None:
            flat = self._replay(self._graphs, batch, prefix, planned)
            if flat is not None:
                logits, normalizers = flat.split([len(batch.reads) * len(batch.candidates), len(batch.leaf_reads)])
                return logits.view(len(batch.reads), len(batch.candidates)), normalizers, True
        hidden = self._shared_states(batch, prefix, planned) if planned and prefix else self._states(batch, prefix)
        device = self._model.device
        states = hidden.flatten(0, 1)[torch.tensor(batch.places, device=device)]
        inside = torch.tensor(batch.leaf_reads, dtype=torch.int32, device=device)
        return *self._head.project(states, self._head.rows(batch.candidates), inside), False

    def _plan(self, batch: Batch, prefix: Prefix | None) -> AttendRows | None:
        """The attention to a prefix read in place; None where copies are to be made."""
        if prefix is None or self._attention is None:
            return None
        planned = self._attention.try_plan(branch_pass(batch.padded, prefix.tokens), instead_of="repeat")
        if planned is None:
            self._attention.check_optional()
        return planned

    def _prefix_cache(self, ids: Tensor) -> Any:
        cache = new_cache(self._model)
        self._backbone(ids[None], cache=cache)
        return cache

    def _states(self, batch: Batch, prefix: Prefix | None) -> Tensor:
        """Hidden states of a batch on copies of the prefix cache."""
        device = self._model.device
        seen = prefix.tokens if prefix else 0
        mask = None
        if min(batch.lengths) < batch.width:
            mask = (torch.arange(seen + batch.width) < seen + torch.tensor(batch.lengths)[:, None]).long().to(device)
        cache = self._fork(prefix.cache, len(batch.rows)) if prefix else None
        return self._backbone(torch.tensor(batch.padded, device=device), mask=mask, cache=cache)

    def _shared_states(self, batch: Batch, prefix: Prefix, planned: AttendRows) -> Tensor:
        ids = torch.tensor(batch.padded, device=self._model.device)
        return self._beside(ids, prefix.rows, planned, planned.table.to(self._model.device))

    def _beside(self, ids: Tensor, rows: Tensor, planned: AttendRows, table: Tensor) -> Tensor:
        """Hidden states of branches that read the prefix `rows` in place."""
        assert self._shared is not None
        seen = rows.shape[3]
        positions = torch.arange(seen, seen + ids.shape[1], device=ids.device)
        # Four dimensions, so that transformers makes no mask of its own; the adapters look at none.
        nothing = torch.zeros(1, 1, 1, 1, device=ids.device)
        with self._shared.over(planned.on(table), rows):
            return self._backbone(ids, mask=nothing, positions=positions.expand_as(ids))

    def _replay(
        self, graphs: GraphPool, batch: Batch, prefix: Prefix | None, planned: AttendRows | None
    ) -> Tensor | None:
        count, width, seen = len(batch.rows), batch.width, prefix.tokens if prefix else 0
        masked = planned is None and (prefix is not None or min(batch.lengths) < width)
        layout = torch.empty(0, dtype=torch.int32) if planned is None else planned.table
        parts = [
            # The layout first: its kernel wants it aligned.
            layout,
            *(
                torch.tensor(numbers, dtype=torch.int32)
                for numbers in (batch.padded, batch.lengths, batch.places, batch.candidates, batch.leaf_reads)
            ),
        ]
        sizes = [part.numel() for part in parts]

        def body(buffer: Tensor, rows: Tensor | None = None) -> Tensor:
            table, ids, lengths, places, candidates, inside = buffer.split(sizes)
            ids = ids.view(count, width)
            if planned is not None and rows is not None:
                hidden = self._beside(ids, rows, planned, table)
            else:
                # An empty cache keeps transformers from looking for packed sequences, which waits for the device.
                cache = new_cache(self._model) if rows is None else unstacked(self._model, rows, count)
                mask = _visible(lengths, seen, width) if masked else None
                hidden = self._backbone(ids, mask=mask, cache=cache)
            states = hidden.flatten(0, 1).index_select(0, places)
            logits, normalizers = self._head.project(states, self._head.select(candidates), inside)
            return torch.cat((logits.flatten(), normalizers))

        shape = (count, width, seen, masked, len(batch.reads), len(batch.candidates), len(batch.leaf_reads))
        table = pinned(torch.cat([part.flatten() for part in parts]), self._model.device)
        return graphs.run(
            ("branches", *shape, None if planned is None else planned.key),
            [table] if prefix is None else [table, prefix.rows],
            body,
            estimate_bytes=2 * key_value_bytes(self._model, count * (seen + width)),
        )

    def _fork(self, cache: Any, branches: int) -> Any:
        share = self._efficient and can_share(cache)
        if not share:
            if self._efficient:
                layers = ", ".join(sorted({type(layer).__name__ for layer in cache.layers}))
                reason = f"cache layout {type(cache).__name__} of {layers} is not known"
                if self._strict:
                    raise SettingError(f"--strict: the prefix cache would be deep-copied ({reason})")
                self._counters["last_copy_fallback"] = reason
            self._counters["deep_copies"] += 1
        return fork(cache, branches, share=share)

    def _backbone(
        self, ids: Tensor, *, mask: Tensor | None = None, cache: Any = None, positions: Tensor | None = None
    ) -> Tensor:
        given = {} if positions is None else {"position_ids": positions}
        output = self._model.base_model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=cache is not None,
            **{self._cache_argument: cache},
            **given,
        )
        return output.last_hidden_state


def _visible(lengths: Tensor, seen: int, width: int) -> Tensor:
    """Which of `seen + width` keys each column of each row sees, bool [rows, 1, width, seen + width]."""
    keys = torch.arange(seen + width, device=lengths.device)
    causal = keys <= seen + torch.arange(width, device=lengths.device)[:, None]
    return (causal & (keys < seen + lengths[:, None])[:, None])[:, None]
