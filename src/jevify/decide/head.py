"""Scores of answer paths, projected in fp32 from exactly the head rows needed."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jevify.decide.plan import Branch, Tokens

# Selections of head rows kept in fp32: a few workflows' worth.
CACHED_SELECTIONS = 16
# Vocabulary rows upcast at once for a full log-normalizer.
_VOCABULARY_CHUNK = 16_384


@dataclass
class HeadCounters:
    """How often selected head rows were reused (`hits`) or gathered anew (`misses`)."""

    hits: int = 0
    misses: int = 0


class AnswerHead:
    """The language-model head, read at candidate tokens only.

    weight: [V, H]; bias: [V] or None. Selections are cached: call `clear` after an in-place change of the weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self._selected: OrderedDict[Tokens, tuple[Tensor, Tensor | None]] = OrderedDict()
        self.counters = HeadCounters()

    def clear(self) -> None:
        """Forget the selected rows."""
        self._selected.clear()

    @torch.inference_mode()
    def score(self, branches: Sequence[Branch], hidden: Tensor) -> list[list[float]]:
        """Log-likelihood of each option of each branch, up to one constant a branch.

        hidden: [sum of branch.rows, H], final-norm states in the order of `Branch.rows`. The first token's
        full-vocabulary normalizer is the same for all options of a branch and is left out; further tokens are
        normalized.
        """
        candidates = tuple(sorted({token for branch in branches for path in branch.answers for token in path}))
        column = {token: index for index, token in enumerate(candidates)}
        weight, bias = self._rows(candidates)
        wide = hidden.float()
        logits = functional.linear(wide, weight, bias).double().tolist()
        later = [branch.rows > 1 for branch in branches]
        normalizers = self._normalizers(wide).tolist() if any(later) else []
        scores, row = [], 0
        for branch in branches:
            first, leaf_row = row, row + 1
            totals = []
            for path in branch.answers:
                total = logits[first][column[path[0]]]
                for token in path[1:]:
                    total += logits[leaf_row][column[token]] - normalizers[leaf_row]
                    leaf_row += 1
                totals.append(total)
            scores.append(totals)
            row += branch.rows
        return scores

    def _rows(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        if tokens in self._selected:
            self.counters.hits += 1
            self._selected.move_to_end(tokens)
            return self._selected[tokens]
        self.counters.misses += 1
        index = torch.tensor(tokens, device=self._weight.device)
        bias = None if self._bias is None else self._bias[index].float()
        self._selected[tokens] = (self._weight[index].float(), bias)
        if len(self._selected) > CACHED_SELECTIONS:
            self._selected.popitem(last=False)
        return self._selected[tokens]

    def _normalizers(self, hidden: Tensor) -> Tensor:
        """log sum exp over the whole vocabulary, fp64 [R], a chunk of rows in fp32 at a time."""
        parts = []
        for start in range(0, self._weight.shape[0], _VOCABULARY_CHUNK):
            rows = slice(start, start + _VOCABULARY_CHUNK)
            bias = None if self._bias is None else self._bias[rows].float()
            parts.append(functional.linear(hidden, self._weight[rows].float(), bias).double().logsumexp(-1))
        return torch.stack(parts).logsumexp(0)
