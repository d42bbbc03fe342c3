"""One pass over a token tree: every prefix, branch and label path of every request in one row of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from jevify.accel.graphs import GraphPool
from jevify.accel.stages import StageTimer
from jevify.accel.tree import TokenTree
from jevify.decide.executors.base import BranchScores
from jevify.decide.head import AnswerHead, Reading
from jevify.decide.plan import Branch, RequestPlan
from jevify.errors import SettingError
from jevify.models.lm.dense import DenseDecoder, KeyValues, PassInputs

# Where a hidden row is found in the tree: a segment and an offset into it.
_Place = tuple[int, int]


class PackedExecutor:
    """Runs requests through our own decoder, in as few passes as the token budget allows.

    graphs: where to capture and replay whole passes, from token ids to candidate logits; None runs eagerly. Requests of
    several passes run eagerly, which is counted, and refused under strict.
    """

    name = "packed"

    def __init__(
        self,
        decoder: DenseDecoder,
        head: AnswerHead,
        *,
        token_budget: int,
        graphs: GraphPool | None = None,
        strict: bool = False,
    ) -> None:
        self._decoder, self._head = decoder, head
        self._budget = token_budget
        self._graphs, self._strict = graphs, strict
        self._forwards = 0
        self._rows = 0

    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor."""
        with timer.stage("pack"):
            tree, places = TokenTree(), []
            for plan in plans:
                places += _plant(tree, plan)
            reading = Reading.of([branch for plan in plans for branch in plan.branches])
        with timer.stage("forward"):
            logits, normalizers = self._read(tree, places, reading)
        with timer.stage("scoring"):
            scores = iter(reading.scores(logits, normalizers))
            return [[next(scores) for _ in plan.branches] for plan in plans]

    def _read(self, tree: TokenTree, places: list[_Place], reading: Reading) -> tuple[Tensor, Tensor]:
        """What the head reads at `places`, in their order, on the host: logits and log-normalizers."""
        order = {place: index for index, place in enumerate(places)}
        passes = tree.passes(self._budget)
        rows, indices = [], []
        for step in passes:
            wanted = [
                (piece.row + offset - piece.offset, order[piece.segment, offset])
                for piece in step.pieces
                for offset in range(piece.offset, piece.offset + piece.length)
                if (piece.segment, offset) in order
            ]
            rows.append([row for row, _ in wanted])
            indices += [index for _, index in wanted]
        self._forwards += len(passes)
        self._rows += sum(len(step.token_ids) for step in passes)
        # Hidden rows come in the order of the passes; the reading wants them in the order of the places.
        back = torch.tensor(indices).argsort()
        found: tuple[Tensor, Tensor] | None = None
        if self._graphs is not None and len(passes) == 1:
            ordered = [rows[0][index] for index in back.tolist()]
            found = self._replay(self._graphs, self._decoder.prepare(passes[0], ordered), reading)
        elif self._graphs is not None:
            self._graphs.fall_back(f"the request takes {len(passes)} passes")
        if found is None:
            if self._strict and self._graphs is not None:
                raise SettingError(f"--strict: no graph was replayed: {self._graphs.counters()['last_fallback']}")
            hidden: list[Tensor] = []
            carried: KeyValues | None = None
            for step, read in zip(passes, rows, strict=True):
                states, carried = self._decoder.forward(step, read, carried)
                hidden.append(states)
            states = torch.cat(hidden)
            logits, normalizers = self._head.read(states[back.to(states.device)], reading)
            found = logits.cpu(), normalizers.cpu()
        return found

    def _replay(self, graphs: GraphPool, inputs: PassInputs, reading: Reading) -> tuple[Tensor, Tensor] | None:
        """The whole pass, from token ids to candidate logits, as one graph; None where it must run eagerly."""
        options, inside = len(reading.candidates), len(reading.leaf_rows)
        ints = torch.tensor([*reading.candidates, *reading.leaf_rows], dtype=torch.int32)
        split = [inputs.table.numel(), options, inside]

        def body(buffer: Tensor) -> Tensor:
            table, candidates, leaf_rows = buffer.split(split)
            hidden, _ = self._decoder.run(inputs, table)
            logits, normalizers = self._head.project(hidden, self._head.select(candidates), leaf_rows)
            return torch.cat((logits.flatten(), normalizers))

        flat = graphs.run(
            (inputs.key, options, inside),
            torch.cat((inputs.table, ints)).pin_memory(),
            body,
            estimate_bytes=self._decoder.activation_bytes(inputs.tokens),
        )
        if flat is None:
            return None
        logits, normalizers = flat.cpu().split([inputs.rows * options, inside])
        return logits.view(inputs.rows, options), normalizers

    def counters(self) -> Mapping[str, Any]:
        """See Executor; `packed_rows` counts the tokens of all passes."""
        counted: dict[str, Any] = {"forward_calls": self._forwards, "packed_rows": self._rows}
        return counted if self._graphs is None else counted | {"graphs": self._graphs.counters()}


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
