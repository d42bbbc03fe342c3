"""The prefix once into a transformers cache, then the branches in right-padded batches on copies of it."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jevify.accel.stages import StageTimer
from jevify.decide.executors.base import BranchScores
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Branch, RequestPlan, Tokens
from jevify.errors import SettingError
from jevify.models.lm.cache import cache_argument, can_share, fork, new_cache
from jevify.models.lm.fused import Fusion


@dataclass(frozen=True)
class _Row:
    """One sequence after the prefix, and which of its columns are read into which hidden row."""

    tokens: Tokens
    reads: tuple[tuple[int, int], ...]  # (hidden row, column)


class ForkedExecutor:
    """Runs requests one by one on the transformers modules.

    branch_batch_size: rows in one branch forward. efficient_cache: share the prefix tensors between copies instead of
    deep-copying them; caches of an unknown layout are deep-copied and counted, or refused under strict. length_aware:
    batch rows of similar length together. fusion: fused kernels to put on the model while requests run, and only then.
    """

    name = "forked"

    def __init__(
        self,
        model: Any,
        head: AnswerHead,
        *,
        branch_batch_size: int,
        efficient_cache: bool,
        length_aware: bool,
        strict: bool,
        fusion: Fusion | None = None,
    ) -> None:
        self._model, self._head = model, head
        self._fusion = fusion
        self._batch = branch_batch_size
        self._efficient, self._length_aware, self._strict = efficient_cache, length_aware, strict
        self._cache_argument = cache_argument(model)
        self._counters: dict[str, Any] = {
            "forward_calls": 0,
            "deep_copies": 0,
            "last_copy_fallback": None,
            "reordered_requests": 0,
            "padded_tokens_unordered": 0,
            "padded_tokens": 0,
        }

    @torch.inference_mode()
    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor."""
        with self._fusion or nullcontext():
            return [self._run_plan(plan, timer) for plan in plans]

    def _run_plan(self, plan: RequestPlan, timer: StageTimer) -> BranchScores:
        with timer.stage("prefill"):
            prefix = self._prefill(plan.prefix) if plan.prefix else None
        with timer.stage("branches"):
            hidden = self._branches(plan, prefix)
        with timer.stage("scoring"):
            return self._head.score(plan.branches, hidden)

    def _prefill(self, tokens: Tokens) -> Any:
        cache = new_cache(self._model)
        self._forward(torch.tensor([tokens]), None, cache)
        return cache

    def _branches(self, plan: RequestPlan, prefix: Any) -> Tensor:
        rows = _rows(plan.branches)
        batches = self._batches(rows)
        found: list[Tensor] = []
        places: list[int] = []
        for batch in batches:
            states = self._run_batch([row.tokens for row in batch], prefix, len(plan.prefix))
            for line, row in enumerate(batch):
                for place, column in row.reads:
                    found.append(states[line, column])
                    places.append(place)
        stacked = torch.stack(found)
        return stacked[torch.tensor(places, device=stacked.device).argsort()]

    def _batches(self, rows: list[_Row]) -> list[list[_Row]]:
        ordered = sorted(rows, key=lambda row: len(row.tokens)) if self._length_aware else rows
        self._counters["reordered_requests"] += ordered != rows
        self._counters["padded_tokens_unordered"] += _padding(_chunks(rows, self._batch))
        batches = _chunks(ordered, self._batch)
        self._counters["padded_tokens"] += _padding(batches)
        return batches

    def _run_batch(self, rows: list[Tokens], prefix: Any, seen: int) -> Tensor:
        width = max(map(len, rows))
        ids = torch.tensor([row + (0,) * (width - len(row)) for row in rows])
        mask = None
        if any(len(row) < width for row in rows):
            lengths = torch.tensor([len(row) for row in rows])
            mask = (torch.arange(seen + width) < seen + lengths[:, None]).long()
        return self._forward(ids, mask, self._fork(prefix, len(rows)) if prefix is not None else None)

    def _fork(self, prefix: Any, branches: int) -> Any:
        share = self._efficient and can_share(prefix)
        if not share:
            self._counters["deep_copies"] += 1
            if self._efficient:
                layers = ", ".join(sorted({type(layer).__name__ for layer in prefix.layers}))
                reason = f"cache layout {type(prefix).__name__} of {layers} is not known"
                if self._strict:
                    raise SettingError(f"--strict: the prefix cache would be deep-copied ({reason})")
                self._counters["last_copy_fallback"] = reason
        return fork(prefix, branches, share=share)

    def _forward(self, ids: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        self._counters["forward_calls"] += 1
        device = self._model.device
        output = self._model.base_model(
            input_ids=ids.to(device),
            attention_mask=None if mask is None else mask.to(device),
            use_cache=cache is not None,
            **{self._cache_argument: cache},
        )
        return output.last_hidden_state

    def counters(self) -> Mapping[str, Any]:
        """See Executor; padding is counted as it would be without reordering, and as it was."""
        return dict(self._counters)


def _rows(branches: Sequence[Branch]) -> list[_Row]:
    """A row for each branch without leaves, and for each leaf; a branch's first row also reads the branch's end."""
    rows: list[_Row] = []
    place = 0
    for branch in branches:
        last = len(branch.tokens) - 1
        reads = [(place, last)]
        place += 1
        for leaf in branch.leaves:
            reads += [(place + index, last + 1 + index) for index in range(len(leaf))]
            rows.append(_Row(branch.tokens + leaf, tuple(reads)))
            place += len(leaf)
            reads = []
        if not branch.leaves:
            rows.append(_Row(branch.tokens, tuple(reads)))
    return rows


def _chunks(rows: list[_Row], size: int) -> list[list[_Row]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _padding(batches: list[list[_Row]]) -> int:
    widths = [[len(row.tokens) for row in batch] for batch in batches]
    return sum(max(batch) * len(batch) - sum(batch) for batch in widths)
