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


@dataclass(frozen=True)
class Reading:
    """What is read off the hidden rows of some branches, and how it becomes scores.

    candidates: the tokens whose logits are needed, ascending. normalized: whether any path has a second token, so
    that log-normalizers over the whole vocabulary are needed too.
    """

    branches: tuple[Branch, ...]
    candidates: Tokens
    normalized: bool

    @classmethod
    def of(cls, branches: Sequence[Branch]) -> "Reading":
        """The reading that scores all options of `branches`."""
        candidates = sorted({token for branch in branches for path in branch.answers for token in path})
        return cls(tuple(branches), tuple(candidates), any(branch.rows > 1 for branch in branches))

    def scores(self, projected: Tensor) -> list[list[float]]:
        """Log-likelihood of each option of each branch, up to one constant a branch, in fp64.

        projected: fp32 [sum of branch.rows, candidates (+ 1)] as `AnswerHead.project` gives it. The first token's
        normalizer is the same for all options of a branch and is left out; further tokens are normalized.
        """
        column = {token: index for index, token in enumerate(self.candidates)}
        rows = projected.tolist()
        scores, row = [], 0
        for branch in self.branches:
            leaf_row = row + 1
            totals = []
            for path in branch.answers:
                total = rows[row][column[path[0]]]
                for token in path[1:]:
                    total += rows[leaf_row][column[token]] - rows[leaf_row][-1]
                    leaf_row += 1
                totals.append(total)
            scores.append(totals)
            row += branch.rows
        return scores


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

    def score(self, branches: Sequence[Branch], hidden: Tensor) -> list[list[float]]:
        """`Reading.scores` of `branches`, whose hidden rows [sum of branch.rows, H] are in the order of `Branch.rows`."""
        reading = Reading.of(branches)
        return reading.scores(self.read(hidden, reading))

    def read(self, hidden: Tensor, reading: Reading) -> Tensor:
        """`project` onto the candidates of `reading`, whose head rows are cached."""
        return self.project(hidden, self._rows(reading.candidates), reading.normalized)

    def select(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Head rows [K, H] and biases [K] of `tokens` (integers [K]), upcast to fp32, not cached."""
        bias = None if self._bias is None else self._bias.index_select(0, tokens).float()
        return self._weight.index_select(0, tokens).float(), bias

    @torch.inference_mode()
    def project(self, hidden: Tensor, rows: tuple[Tensor, Tensor | None], normalized: bool) -> Tensor:
        """Logits of the selected rows, fp32 [R, K], and when `normalized` a last column with the log-normalizer."""
        wide = hidden.float()
        logits = functional.linear(wide, *rows)
        return torch.cat((logits, self._normalizers(wide)[:, None]), dim=1) if normalized else logits

    def _rows(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        if tokens in self._selected:
            self.counters.hits += 1
            self._selected.move_to_end(tokens)
            return self._selected[tokens]
        self.counters.misses += 1
        self._selected[tokens] = self.select(torch.tensor(tokens, device=self._weight.device))
        if len(self._selected) > CACHED_SELECTIONS:
            self._selected.popitem(last=False)
        return self._selected[tokens]

    def _normalizers(self, hidden: Tensor) -> Tensor:
        """log sum exp over the whole vocabulary, fp32 [R], a chunk of rows upcast at a time."""
        parts = []
        for start in range(0, self._weight.shape[0], _VOCABULARY_CHUNK):
            rows = slice(start, start + _VOCABULARY_CHUNK)
            bias = None if self._bias is None else self._bias[rows].float()
            parts.append(functional.linear(hidden, self._weight[rows].float(), bias).logsumexp(-1))
        return torch.stack(parts).logsumexp(0)
