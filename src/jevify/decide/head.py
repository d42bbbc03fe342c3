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
# Hidden rows and vocabulary rows of one fp32 block of a full log-normalizer: 64 MiB.
_ROW_CHUNK, _VOCABULARY_CHUNK = 1_024, 16_384


@dataclass(frozen=True)
class Reading:
    """What is read off the hidden rows of some branches, and how it becomes scores.

    candidates: the tokens whose logits are needed, ascending. leaf_rows: the hidden rows inside labels, which need a
    log-normalizer over the whole vocabulary too.
    """

    branches: tuple[Branch, ...]
    candidates: Tokens
    leaf_rows: tuple[int, ...]

    @classmethod
    def of(cls, branches: Sequence[Branch]) -> "Reading":
        """The reading that scores all options of `branches`, hidden rows in the order of `Branch.rows`."""
        candidates = sorted({token for branch in branches for path in branch.answers for token in path})
        leaf_rows: list[int] = []
        row = 0
        for branch in branches:
            leaf_rows += range(row + 1, row + branch.rows)
            row += branch.rows
        return cls(tuple(branches), tuple(candidates), tuple(leaf_rows))

    def scores(self, logits: Tensor, normalizers: Tensor) -> list[list[float]]:
        """Log-likelihood of each option of each branch, up to one constant a branch, summed in fp64.

        logits: [sum of branch.rows, candidates]; normalizers: [leaf_rows]. The first token's normalizer is the same for
        all options of a branch and is left out; further tokens are normalized.
        """
        column = {token: index for index, token in enumerate(self.candidates)}
        rows, inside = logits.tolist(), iter(normalizers.tolist())
        scores, row = [], 0
        for branch in self.branches:
            leaf_row = row + 1
            totals = []
            for path in branch.answers:
                total = rows[row][column[path[0]]]
                for token in path[1:]:
                    total += rows[leaf_row][column[token]] - next(inside)
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

    @torch.inference_mode()
    def score(self, branches: Sequence[Branch], hidden: Tensor) -> list[list[float]]:
        """`Reading.scores` of `branches`; hidden: [sum of branch.rows, H], in the order of `Reading`."""
        reading = Reading.of(branches)
        return reading.scores(*self.read(hidden, reading))

    def read(self, hidden: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
        """`project` for `reading`, whose selected head rows are cached."""
        leaf_rows = torch.tensor(reading.leaf_rows, dtype=torch.int32, device=hidden.device)
        return self.project(hidden, self.rows(reading.candidates), leaf_rows)

    def select(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Head rows [K, H] and biases [K] of `tokens` (integers [K]) in fp32, not cached."""
        bias = None if self._bias is None else self._bias.index_select(0, tokens).float()
        return self._weight.index_select(0, tokens).float(), bias

    @torch.inference_mode()
    def project(self, hidden: Tensor, rows: tuple[Tensor, Tensor | None], leaf_rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the selected rows, fp32 [R, K], and log-normalizers [L] of the hidden rows `leaf_rows`.

        Waits for nothing, so a graph can hold it.
        """
        wide = hidden.float()
        return functional.linear(wide, *rows), self._normalizers(wide.index_select(0, leaf_rows))

    def rows(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """`select` of `tokens`, cached."""
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
        """log sum exp of the logits over the whole vocabulary, fp32 [R]; at most one fp32 block at a time."""
        found = []
        # Splitting no rows gives one empty chunk, and every chunk reads the whole vocabulary.
        for rows in hidden.split(_ROW_CHUNK) if len(hidden) else ():
            parts = []
            for start in range(0, self._weight.shape[0], _VOCABULARY_CHUNK):
                tokens = slice(start, start + _VOCABULARY_CHUNK)
                bias = None if self._bias is None else self._bias[tokens].float()
                parts.append(functional.linear(rows, self._weight[tokens].float(), bias).logsumexp(-1))
            found.append(torch.stack(parts).logsumexp(0))
        return torch.cat(found) if found else hidden.new_empty(0)
