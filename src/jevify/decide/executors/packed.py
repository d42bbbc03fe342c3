"""One pass over a token tree: every prefix, branch and label path of every request in one row of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jevify.accel.buckets import bucket
from jevify.accel.graphs import GraphPool
from jevify.accel.stages import StageTimer
from jevify.accel.transfer import StreamClock, begin_to_host, pinned, wait
from jevify.accel.tree import Pass, TokenTree
from jevify.decide.executors.base import BranchScores
from jevify.decide.head import AnswerHead, Reading
from jevify.decide.plan import Branch, RequestPlan
from jevify.errors import SettingError
from jevify.models.lm.dense import DenseDecoder, KeyValues, PassInputs

# Where a hidden row is found in the tree: a segment and an offset into it.
_Place = tuple[int, int]

# Bucketed graphs. Up to about 184 rows a pass costs the weight read whatever it holds, so smaller buckets save nothing;
# four an octave waste at most a quarter, and sixteen reach 2,688 rows. The head's own sizes cost next to nothing.
LEAST_ROWS, ROW_STEPS = 192, 4
LEAST_READS, LEAST_CANDIDATES = 32, 64


@dataclass(frozen=True)
class _Pending:
    """The scores of some requests on their way to the host."""

    plans: Sequence[RequestPlan]
    reading: Reading
    logits: Tensor
    normalizers: Tensor


class PackedExecutor:
    """Runs requests through our own decoder, in as few passes as the token budget allows.

    Requests are never cut unless one alone exceeds the budget. graphs: where to capture and replay whole passes, from
    token ids to candidate logits; None runs eagerly. bucketed: pad passes, so that a few graphs serve all lengths. What
    takes several passes runs eagerly, which is counted, and refused under strict.
    """

    name = "packed"

    def __init__(
        self,
        decoder: DenseDecoder,
        head: AnswerHead,
        *,
        token_budget: int,
        graphs: GraphPool | None = None,
        bucketed: bool = False,
        strict: bool = False,
    ) -> None:
        self._decoder, self._head = decoder, head
        self._device = decoder.weights.embedding.device
        self._budget = token_budget
        self._graphs, self._bucketed, self._strict = graphs, bucketed, strict
        self._forwards = self._rows = self._padded = 0
        self._last_graph_rows: int | None = None

    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor. Stage `device`: from the first copy to the last, as the GPU counts."""
        pending = []
        clock: StreamClock | None = None
        for group in _groups(plans, self._budget):
            with timer.stage("pack", queues=False):
                tree, places = TokenTree(), []
                for plan in group:
                    places += _plant(tree, plan)
                reading = Reading.of([branch for plan in group for branch in plan.branches])
                passes, rows, order = _reads(tree, places, self._budget)
            with timer.stage("forward", queues=False):
                clock = clock or StreamClock(self._device)
                logits, normalizers = self._begin(passes, rows, order, reading)
                pending.append(_Pending(group, reading, logits, normalizers))
        with timer.stage("forward", queues=False):
            if clock is not None:
                clock.stop()
            wait(self._device)
        if clock is not None and (elapsed := clock.milliseconds()) is not None:
            timer.charge("device", elapsed)
        with timer.stage("scoring", queues=False):
            return [scores for part in pending for scores in _scores(part)]

    def _begin(
        self, passes: list[Pass], rows: list[list[int]], order: list[int], reading: Reading
    ) -> tuple[Tensor, Tensor]:
        """Launch everything for one reading; what it needs is copied to the host behind the launches."""
        self._forwards += len(passes)
        self._last_graph_rows = None
        self._rows += sum(len(step.token_ids) for step in passes)
        if self._graphs is not None:
            if len(passes) == 1:
                found = self._replay(self._graphs, passes[0], [rows[0][index] for index in order], reading)
                if found is not None:
                    return found
            else:
                self._graphs.fall_back(f"the request takes {len(passes)} passes")
            if self._strict:
                raise SettingError(f"--strict: no graph was replayed: {self._graphs.counters()['last_fallback']}")
        hidden: list[Tensor] = []
        carried: KeyValues | None = None
        for step, read in zip(passes, rows, strict=True):
            states, carried = self._decoder.forward(step, read, carried)
            hidden.append(states)
        states = torch.cat(hidden)[torch.tensor(order, device=self._device)]
        logits, normalizers = self._head.read(states, reading)
        return begin_to_host(logits), begin_to_host(normalizers)

    def _replay(self, graphs: GraphPool, step: Pass, rows: list[int], reading: Reading) -> tuple[Tensor, Tensor] | None:
        """The whole pass, from token ids to candidate logits, as one graph; None where it must run eagerly."""
        inputs, candidates, leaf_rows = self._inputs(step, rows, reading)
        ints = torch.tensor([*candidates, *leaf_rows], dtype=torch.int32)
        split = [inputs.table.numel(), len(candidates), len(leaf_rows)]

        def body(buffer: Tensor) -> Tensor:
            table, tokens, inside = buffer.split(split)
            hidden, _ = self._decoder.run(inputs, table)
            logits, normalizers = self._head.project(hidden, self._head.select(tokens), inside)
            return torch.cat((logits.flatten(), normalizers))

        flat = graphs.run(
            (inputs.key, *split[1:]),
            [pinned(torch.cat((inputs.table, ints)), self._device)],
            body,
            estimate_bytes=self._decoder.activation_bytes(inputs.tokens),
        )
        if flat is None:
            return None
        self._padded += inputs.tokens - len(step.token_ids)
        self._last_graph_rows = inputs.tokens
        logits, normalizers = begin_to_host(flat).split([inputs.rows * len(candidates), len(leaf_rows)])
        logits = logits.view(inputs.rows, len(candidates))
        return logits[: len(rows), : len(reading.candidates)], normalizers[: len(reading.leaf_rows)]

    def _inputs(
        self, step: Pass, rows: list[int], reading: Reading
    ) -> tuple[PassInputs, tuple[int, ...], tuple[int, ...]]:
        """What a graph reads: the pass, candidate tokens and leaf rows, all padded when graphs are bucketed."""
        if not self._bucketed:
            return self._decoder.prepare(step, rows), reading.candidates, reading.leaf_rows
        wide = bucket(len(step.token_ids), least=LEAST_ROWS, steps=ROW_STEPS)
        # Row and token 0 are there in every pass; what is read of them is dropped.
        rows = rows + [0] * (bucket(len(rows), least=LEAST_READS, steps=1) - len(rows))
        candidates = _filled(reading.candidates, LEAST_CANDIDATES)
        leaf_rows = _filled(reading.leaf_rows, LEAST_READS) if reading.leaf_rows else ()
        return self._decoder.prepare(step, rows, wide), candidates, leaf_rows

    def counters(self) -> Mapping[str, Any]:
        """See Executor.

        `packed_rows` counts the tokens of all passes, `padding_rows` what bucketed graphs added to them;
        `last_graph_rows` is the size of the graph that ran last, None when the last pass ran eagerly.
        """
        counted: dict[str, Any] = {
            "forward_calls": self._forwards,
            "packed_rows": self._rows,
            "padding_rows": self._padded,
            "last_graph_rows": self._last_graph_rows,
            "attention": self._decoder.attention.counters(),
        }
        return counted if self._graphs is None else counted | {"graphs": self._graphs.counters()}


def _groups(plans: Sequence[RequestPlan], budget: int) -> list[list[RequestPlan]]:
    """Plans in order, as many together as fit the budget; one that alone exceeds it is a group of its own."""
    groups: list[list[RequestPlan]] = []
    used = 0
    for plan in plans:
        size = plan.tokens
        if not groups or used + size > budget:
            groups.append([])
            used = 0
        groups[-1].append(plan)
        used += size
    return groups


def _reads(tree: TokenTree, places: list[_Place], budget: int) -> tuple[list[Pass], list[list[int]], list[int]]:
    """The passes of a tree, the rows to read from each, and the order that makes these the `places`."""
    wanted: dict[int, list[tuple[int, int]]] = {}  # by segment: offsets, and which place each is
    for index, (segment, offset) in enumerate(places):
        wanted.setdefault(segment, []).append((offset, index))
    passes = tree.passes(budget)
    rows, found = [], []
    for step in passes:
        reads = [
            (piece.row + offset - piece.offset, index)
            for piece in step.pieces
            for offset, index in wanted.get(piece.segment, ())
            if piece.offset <= offset < piece.offset + piece.length
        ]
        rows.append([row for row, _ in reads])
        found += [index for _, index in reads]
    # Hidden rows come in the order of the passes; the reading wants them in the order of the places.
    return passes, rows, sorted(range(len(found)), key=found.__getitem__)


def _scores(part: _Pending) -> list[BranchScores]:
    scores = iter(part.reading.scores(part.logits, part.normalizers))
    return [[next(scores) for _ in plan.branches] for plan in part.plans]


def _filled(numbers: tuple[int, ...], least: int) -> tuple[int, ...]:
    return numbers + (0,) * (bucket(len(numbers), least=least, steps=1) - len(numbers))


def _plant(tree: TokenTree, plan: RequestPlan) -> list[_Place]:
    """Add a request to the tree; return where its hidden rows are, branch by branch in the order of `Branch.rows`."""
    root = tree.add(plan.prefix) if plan.prefix else None
    places: list[_Place] = []
    for branch in plan.branches:
        places += _plant_branch(tree, branch, root)
    return places


def _plant_branch(tree: TokenTree, branch: Branch, root: int | None) -> list[_Place]:
    segment = tree.add(branch.tokens, root)
    places = [(segment, len(branch.tokens) - 1)]
    for leaf in branch.leaves:
        path = tree.add(leaf, segment)
        places += [(path, offset) for offset in range(len(leaf))]
    return places
