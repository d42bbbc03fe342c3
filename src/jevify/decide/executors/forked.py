"""The prefix once into a transformers cache, then the branches in right-padded batches that continue it."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jevify.accel.graphs import GraphPool
from jevify.accel.stages import StageTimer
from jevify.accel.transfer import begin_to_host, wait
from jevify.decide.executors.base import BranchScores
from jevify.decide.executors.forked_forward import Batch, ForkedForward, Prefix
from jevify.decide.head import AnswerHead, Reading
from jevify.decide.plan import Branch, RequestPlan, Tokens
from jevify.errors import SettingError
from jevify.models.lm.attention import KernelAttention
from jevify.models.lm.fused import Fusion
from jevify.models.lm.shared_prefix import SharedPrefix


@dataclass(frozen=True)
class _Row:
    """One sequence after the prefix, and which of its columns are read into which hidden row."""

    tokens: Tokens
    reads: tuple[tuple[int, int], ...]  # (hidden row, column)


@dataclass(frozen=True)
class _Part:
    """What the head read of one batch, on its way to the host, and into which hidden rows of the request it goes."""

    places: tuple[int, ...]
    leaf_places: tuple[int, ...]
    logits: Tensor
    normalizers: Tensor


class ForkedExecutor:
    """Runs requests one by one on the transformers modules.

    branch_batch_size: rows in one branch forward. efficient_cache: share the prefix tensors between copies instead of
    deep-copying them; caches of an unknown layout are deep-copied and counted, or refused under strict. length_aware:
    batch rows of similar length together. fusion: fused kernels to put on the model while requests run, and only then;
    it carries `shared` where branches shall read the prefix in place, by `attention`. fusion_optional: where the fusion
    cannot be put on, run without it and count that, or refuse under strict. graphs: where to capture and
    replay prefixes and batches, each of an exact shape; None runs eagerly.
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
        fusion_optional: bool = False,
        attention: KernelAttention | None = None,
        shared: SharedPrefix | None = None,
        graphs: GraphPool | None = None,
    ) -> None:
        self._fusion, self._fusion_optional, self._graphs = fusion, fusion_optional, graphs
        self._device = model.device
        self._batch = branch_batch_size
        self._length_aware, self._strict = length_aware, strict
        self._forward = ForkedForward(
            model,
            head,
            efficient_cache=efficient_cache,
            strict=strict,
            attention=attention,
            shared=shared,
            graphs=graphs,
        )
        self._counters: dict[str, Any] = {
            "forward_calls": 0,
            "reordered_requests": 0,
            "padded_tokens_unordered": 0,
            "padded_tokens": 0,
            "fusion_fallbacks": 0,
            "last_fusion_fallback": None,
        }

    @torch.inference_mode()
    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor."""
        fusion = self._usable_fusion()
        with fusion or nullcontext():
            return [self._run_plan(plan, timer, shares=fusion is not None) for plan in plans]

    def _usable_fusion(self) -> Fusion | None:
        if self._fusion is None or not self._fusion_optional or (reason := self._fusion.obstacle()) is None:
            return self._fusion
        if self._strict:
            raise SettingError(f"--strict: branches cannot share the prefix: {reason}")
        self._counters["fusion_fallbacks"] += 1
        self._counters["last_fusion_fallback"] = reason
        return None

    def _run_plan(self, plan: RequestPlan, timer: StageTimer, *, shares: bool) -> BranchScores:
        reading = Reading.of(plan.branches)
        with timer.stage("prefill"):
            prefix = self._prefill(plan.prefix) if plan.prefix else None
        with timer.stage("branches"):
            batches = self._batches(_rows(plan.branches))
            parts = [self._run_batch(batch, prefix, reading, shares=shares) for batch in batches]
        with timer.stage("scoring"):
            wait(self._device)
            return reading.scores(*_assembled(parts))

    def _prefill(self, tokens: Tokens) -> Prefix:
        self._counters["forward_calls"] += 1
        prefix = self._forward.prefill(tokens)
        self._check_replayed(prefix.replayed)
        return prefix

    def _batches(self, rows: list[_Row]) -> list[list[_Row]]:
        ordered = sorted(rows, key=lambda row: len(row.tokens)) if self._length_aware else rows
        self._counters["reordered_requests"] += ordered != rows
        self._counters["padded_tokens_unordered"] += _padding(_chunks(rows, self._batch))
        batches = _chunks(ordered, self._batch)
        self._counters["padded_tokens"] += _padding(batches)
        return batches

    def _run_batch(self, rows: list[_Row], prefix: Prefix | None, reading: Reading, *, shares: bool) -> _Part:
        leaves = set(reading.leaf_rows)
        reads = [(place, line, column) for line, row in enumerate(rows) for place, column in row.reads]
        batch = Batch(
            rows=tuple(row.tokens for row in rows),
            reads=tuple((line, column) for _, line, column in reads),
            candidates=reading.candidates,
            leaf_reads=tuple(index for index, (place, _, _) in enumerate(reads) if place in leaves),
        )
        self._counters["forward_calls"] += 1
        logits, normalizers, replayed = self._forward.branches(batch, prefix, shares=shares)
        self._check_replayed(replayed)
        places = tuple(place for place, _, _ in reads)
        return _Part(
            places,
            tuple(places[index] for index in batch.leaf_reads),
            begin_to_host(logits),
            begin_to_host(normalizers),
        )

    def _check_replayed(self, replayed: bool) -> None:
        if self._strict and self._graphs is not None and not replayed:
            raise SettingError(f"--strict: no graph was replayed: {self._graphs.counters()['last_fallback']}")

    def counters(self) -> Mapping[str, Any]:
        """See Executor; padding is counted as it would be without reordering, and as it was."""
        counted = {**self._counters, **self._forward.counters()}
        return counted if self._graphs is None else counted | {"graphs": self._graphs.counters()}


def _assembled(parts: Sequence[_Part]) -> tuple[Tensor, Tensor]:
    """Logits and log-normalizers of all batches in the order of the request's hidden rows."""
    places = torch.tensor([place for part in parts for place in part.places])
    leaf_places = torch.tensor([place for part in parts for place in part.leaf_places], dtype=torch.int64)
    logits = torch.cat([part.logits for part in parts])
    normalizers = torch.cat([part.normalizers for part in parts])
    return logits[places.argsort()], normalizers[leaf_places.argsort()]


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
