"""One pass over a token tree: every prefix, branch and label path of every request in one row of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from jevify.accel.stages import StageTimer
from jevify.accel.tree import TokenTree
from jevify.decide.executors.base import BranchScores
from jevify.decide.head import AnswerHead
from jevify.decide.plan import Branch, RequestPlan
from jevify.models.lm.dense import DenseDecoder, KeyValues

# Where a hidden row is found in the tree: a segment and an offset into it.
_Place = tuple[int, int]


class PackedExecutor:
    """Runs requests through our own decoder, in as few passes as the token budget allows."""

    name = "packed"

    def __init__(self, decoder: DenseDecoder, head: AnswerHead, *, token_budget: int) -> None:
        self._decoder, self._head = decoder, head
        self._budget = token_budget
        self._forwards = 0
        self._rows = 0

    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor."""
        with timer.stage("pack"):
            tree, places = TokenTree(), []
            for plan in plans:
                places += _plant(tree, plan)
        with timer.stage("forward"):
            hidden = self._hidden(tree, places)
        with timer.stage("scoring"):
            branches = [branch for plan in plans for branch in plan.branches]
            scores = iter(self._head.score(branches, hidden))
            return [[next(scores) for _ in plan.branches] for plan in plans]

    def _hidden(self, tree: TokenTree, places: list[_Place]) -> Tensor:
        """Hidden states at `places`, in their order."""
        order = {place: index for index, place in enumerate(places)}
        found: list[Tensor] = []
        indices: list[int] = []
        carried: KeyValues | None = None
        for step in tree.passes(self._budget):
            rows = []
            for piece in step.pieces:
                for offset in range(piece.offset, piece.offset + piece.length):
                    if (index := order.get((piece.segment, offset))) is not None:
                        rows.append(piece.row + offset - piece.offset)
                        indices.append(index)
            hidden, carried = self._decoder.forward(step, rows, carried)
            found.append(hidden)
            self._forwards += 1
            self._rows += len(step.token_ids)
        gathered = torch.cat(found)
        return gathered[torch.tensor(indices, device=gathered.device).argsort()]

    def counters(self) -> Mapping[str, Any]:
        """See Executor; `packed_rows` counts the tokens of all passes."""
        return {"forward_calls": self._forwards, "packed_rows": self._rows}


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
