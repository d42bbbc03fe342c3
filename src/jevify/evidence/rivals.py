"""Other ways to run a request on the transformers modules, measured beside our own and never offered to users."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from jevify.accel.stages import StageTimer
from jevify.decide.executors.base import BranchScores
from jevify.decide.head import AnswerHead
from jevify.decide.plan import RequestPlan

# Token ids [B, W] -> last hidden states [B, W, H].
Forward = Callable[[Tensor], Tensor]
# Widths are padded to a multiple of this, so that requests of about one size have one shape.
WIDTH_STEP = 64


class BatchExecutor:
    """One right-padded batch of whole questions a request, each option of two tokens or more a row of its own.

    The same modules and arithmetic as the independent executor at another batch shape. Padding on the right needs no
    mask, since no token sees what comes after it, and without a mask SDPA may take its fastest kernels. forward: what
    runs the batch; the model's own forward by default.
    """

    name = "independent"

    def __init__(self, model: Any, head: AnswerHead, forward: Forward | None = None) -> None:
        self._model, self._head = model, head
        self._forward = forward or plain_forward(model)
        self._forwards = 0

    @torch.inference_mode()
    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor."""
        return [self._run_plan(plan, timer) for plan in plans]

    def _run_plan(self, plan: RequestPlan, timer: StageTimer) -> BranchScores:
        rows: list[tuple[int, ...]] = []
        reads: list[tuple[int, int]] = []  # (row, column) of each hidden row, in the order of `Branch.rows`
        for branch in plan.branches:
            question = plan.prefix + branch.tokens
            reads.append((len(rows), len(question) - 1))
            for leaf in branch.leaves:
                reads += [(len(rows), len(question) + index) for index in range(len(leaf))]
                rows.append(question + leaf)
            if not branch.leaves:
                rows.append(question)
        with timer.stage("forward"):
            hidden = self._hidden(rows)
            self._forwards += 1
            found = hidden[[row for row, _ in reads], [column for _, column in reads]]
        with timer.stage("scoring"):
            return self._head.score(plan.branches, found)

    def _hidden(self, rows: list[tuple[int, ...]]) -> Tensor:
        width = -(-max(map(len, rows)) // WIDTH_STEP) * WIDTH_STEP
        ids = torch.tensor([row + (0,) * (width - len(row)) for row in rows])
        return self._forward(ids.to(self._model.device))

    def counters(self) -> Mapping[str, Any]:
        """See Executor."""
        return {"forward_calls": self._forwards}


def plain_forward(model: Any) -> Forward:
    """The model's forward without a cache, up to the hidden states."""
    return lambda ids: model.base_model(input_ids=ids, use_cache=False).last_hidden_state


def compiled_forward(model: Any) -> Forward:
    """`plain_forward` under torch.compile with its own CUDA graphs, for each shape that comes.

    What somebody with transformers alone would write for speed. A static cache serves generation, and nothing is
    generated here: a cache would only add its writes. The head is left out, which favors it. Compiles at the first call
    of a shape; the result lives until the next call.
    """
    forward = torch.compile(model.base_model.forward, mode="reduce-overhead", dynamic=False)

    def run(ids: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        hidden: Tensor = forward(input_ids=ids, use_cache=False).last_hidden_state
        return hidden

    return run


def rival_engine(name: str, engine: Any) -> Any:
    """The engine that runs its requests as the named rival; see `RIVALS` of the decide scenario."""
    if name == "padded-batch":
        return engine.with_executor(BatchExecutor)
    return engine.with_executor(lambda model, head: BatchExecutor(model, head, compiled_forward(model)))
