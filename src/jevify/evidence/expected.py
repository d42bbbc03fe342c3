"""What arithmetic says a decide arm needs: forward calls, and the speed-up from sharing the prefix."""

from dataclasses import dataclass

from jevify.decide.settings import DecideSettings


@dataclass(frozen=True)
class RequestSize:
    """Tokens of one request as run: the shared prefix, each full question, each option's answer path.

    `answer_paths[i]` holds one length an option of question i. A path of one token is read off the
    question's own last row; each further token of a longer one is a row more.
    """

    shared: int
    tokens: tuple[int, ...]
    answer_paths: tuple[tuple[int, ...], ...]

    def leaves(self, question: int) -> list[int]:
        """Rows below the question, one entry an option of two tokens or more."""
        return [length - 1 for length in self.answer_paths[question] if length > 1]

    @property
    def independent_tokens(self) -> int:
        """Rows when every question, and every longer option behind it, is a forward of its own."""
        return sum(total + sum(total + leaf for leaf in self.leaves(index)) for index, total in enumerate(self.tokens))

    @property
    def packed_tokens(self) -> int:
        """Rows when nothing is computed twice."""
        branches = sum(total - self.shared + sum(self.leaves(index)) for index, total in enumerate(self.tokens))
        return self.shared + branches

    @property
    def visible_keys(self) -> int:
        """Pairs of a row and a key it sees, over the rows that `packed_tokens` counts."""
        pairs = _triangle(0, self.shared)
        for index, total in enumerate(self.tokens):
            pairs += _triangle(self.shared, total)
            pairs += sum(_triangle(total, total + leaf) for leaf in self.leaves(index))
        return pairs

    @property
    def bound(self) -> float:
        """The speed-up over one question a forward if time were proportional to rows.

        N questions of Q tokens behind P shared ones, each option one token: N(P+Q) / (P+NQ).
        """
        return self.independent_tokens / self.packed_tokens


def expected_forward_calls(size: RequestSize, settings: DecideSettings) -> int | None:
    """Forwards that the executor of `settings` makes for one request; None where that follows its packing.

    independent: one a question, and one an option of two tokens or more. forked: one for the prefix, and one
    a batch of rows, where a question with longer options takes a row for each of them. packed: one, when all
    rows fit the token budget.
    """
    leaves = [len(size.leaves(index)) for index in range(len(size.tokens))]
    if settings.executor == "independent":
        return len(leaves) + sum(leaves)
    if settings.executor == "forked":
        rows = sum(max(1, options) for options in leaves)
        return (1 if size.shared else 0) + -(-rows // settings.branch_batch_size)
    return 1 if size.packed_tokens <= settings.token_budget else None


def _triangle(start: int, stop: int) -> int:
    """Keys seen by rows at depth `start` to `stop`, each of which sees its own depth and one more."""
    return (stop * (stop + 1) - start * (start + 1)) // 2
