"""The oracle: plain transformers, one full question a forward, no optimization.

A digest test freezes this file. Candidates are measured against it, so it is never edited to make one look good.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from jevify.accel.stages import StageTimer
from jevify.decide.executors.base import BranchScores
from jevify.decide.head import AnswerHead
from jevify.decide.plan import RequestPlan, Tokens
from jevify.models.lm.upcast import float32_forward


class IndependentExecutor:
    """One forward for each question, and one more for each option of two tokens or more."""

    name = "independent"

    def __init__(self, model: Any, head: AnswerHead, *, float32: bool = False) -> None:
        self._model, self._head = model, head
        self._float32 = float32
        self._forwards = 0

    @torch.inference_mode()
    def run(self, plans: Sequence[RequestPlan], timer: StageTimer) -> list[BranchScores]:
        """Scores of every plan; see Executor."""
        results = []
        with float32_forward(self._model) if self._float32 else nullcontext():
            for plan in plans:
                scores: BranchScores = []
                for branch in plan.branches:
                    question = plan.prefix + branch.tokens
                    with timer.stage("forward"):
                        rows = [self._hidden(question, 1)]
                        rows += [self._hidden(question + leaf, len(leaf)) for leaf in branch.leaves]
                    with timer.stage("scoring"):
                        scores += self._head.score([branch], torch.cat(rows))
                results.append(scores)
        return results

    def _hidden(self, tokens: Tokens, rows: int) -> Tensor:
        ids = torch.tensor([tokens], device=self._model.device)
        self._forwards += 1
        return self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -rows:]

    def counters(self) -> Mapping[str, Any]:
        """See Executor."""
        return {"forward_calls": self._forwards}
