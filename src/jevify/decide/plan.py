"""A request after tokenization: one shared prefix, a branch for each question, a token path for each option."""

from collections.abc import Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Branch:
    """What follows the prefix for one question.

    `tokens` end where the answer begins. `answers` holds the token path of each option, in the order of the question's
    labels; a path of one token is read off the last row of the branch, each further token off the row of the token
    before it.
    """

    tokens: Tokens
    answers: tuple[Tokens, ...]

    @property
    def leaves(self) -> tuple[Tokens, ...]:
        """The tokens to feed below the branch, one path for each option of two tokens or more."""
        return tuple(path[:-1] for path in self.answers if len(path) > 1)

    @property
    def rows(self) -> int:
        """Hidden rows needed to score the branch: its last row, then every leaf row, options in order."""
        return 1 + sum(len(leaf) for leaf in self.leaves)


@dataclass(frozen=True)
class RequestPlan:
    """Token ids of one request. Every full question is `prefix + branch.tokens`, exactly as rendered alone."""

    prefix: Tokens
    branches: tuple[Branch, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the whole tree: the prefix once, every branch and every leaf."""
        return len(self.prefix) + sum(len(branch.tokens) + branch.rows - 1 for branch in self.branches)


def share_prefix(full: list[tuple[Tokens, tuple[Tokens, ...]]]) -> RequestPlan:
    """Split full questions, each with its answer paths, at their longest common prefix.

    A single question shares nothing, so its prefix is empty. Every branch keeps at least one token.
    """
    if len(full) == 1:
        return RequestPlan((), (Branch(*full[0]),))
    shared = min(common_length([tokens for tokens, _ in full]), min(len(tokens) for tokens, _ in full) - 1)
    return RequestPlan(full[0][0][:shared], tuple(Branch(tokens[shared:], answers) for tokens, answers in full))


def common_length(sequences: Sequence[Tokens] | Sequence[str]) -> int:
    """How many leading tokens, or characters, all `sequences` share."""
    low, high = min(sequences), max(sequences)
    for index, token in enumerate(low):
        if index == len(high) or high[index] != token:
            return index
    return len(low)
