"""Decide requests of an exact size in tokens, made of common English words.

Speed depends on how many tokens a request holds, not on what they say, so the text is random.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.kinds.base import Case
from jevify.evidence.words import WORDS

Questions = dict[str, dict[str, Any]]
# What an engine measures of (context, questions): shared prefix tokens, and tokens of each full question.
Count = Callable[[str, Questions], tuple[int, Sequence[int]]]

# The commonest words, which most tokenizers keep whole where an answer begins.
_LABEL_WORDS = WORDS[:80]
_LABELS_PER_CHOICE = 3
_ATTEMPTS = 60


@dataclass(frozen=True)
class SizedRequest:
    """A request and its size as the engine counts it.

    `shared` counts the shared prefix tokens (0 for one question), `tokens` those of each full question,
    prefix included, in the order of `questions`.
    """

    context: str
    questions: Questions
    shared: int
    tokens: tuple[int, ...]


@dataclass
class _Text:
    """Random words that can be made longer and shorter, never empty."""

    draw: random.Random
    words: list[str] = field(default_factory=list)

    def resize(self, tokens: int) -> bool:
        """Add or drop about that many tokens of words; return whether anything changed."""
        if tokens > 0:
            self.words += self.draw.choices(WORDS, k=tokens)
            return True
        keep = max(1, len(self.words) + tokens)
        changed = keep != len(self.words)
        del self.words[keep:]
        return changed

    def redraw(self) -> None:
        self.words = self.draw.choices(WORDS, k=len(self.words))

    def __str__(self) -> str:
        return " ".join(self.words)


def sized_requests(case: Case, count: Count, *, number: int, seed: int) -> list[SizedRequest]:
    """`number` requests of the same questions about different contexts, as near to `case` as words allow.

    Choice and noul questions alternate. Each request carries its real counts, which differ from those asked
    for only where no number of words meets them (a question cannot be shorter than its own frame). The same
    case, counts and seed give the same requests. Raises JevifyError when `count` returns what cannot be the
    counts of the questions.
    """
    draw = random.Random(f"{seed}/{case.prefix_tokens}/{case.question_tokens}/{case.questions}")
    draft = _Draft(case, count, draw)
    requests = []
    for index in range(number):
        if index:
            draft.context.redraw()
        requests.append(draft.fit())
    return requests


class _Draft:
    """The texts of one request while their lengths are being found."""

    def __init__(self, case: Case, count: Count, draw: random.Random) -> None:
        self._case, self._count = case, count
        # One question shares no prefix with itself: a second one, never sent, shows where the context ends.
        drafted = max(2, case.questions)
        self.context = _Text(draw, draw.choices(WORDS, k=max(1, case.prefix_tokens // 2)))
        # Different first words end the common prefix of all questions where the instructions begin.
        first = draw.sample(WORDS, min(drafted, len(WORDS)))
        self._instructions = [_Text(draw, [first[index % len(first)]]) for index in range(drafted)]
        self._labels = [distinct_labels(draw) for _ in range(drafted)]

    def fit(self) -> SizedRequest:
        """Resize the texts until the counts are met, or stay with the nearest found."""
        best: tuple[int, SizedRequest] | None = None
        for _ in range(_ATTEMPTS):
            context, questions = str(self.context), self._questions()
            shared, tokens = self._counts(context, questions)
            of_context = self._case.prefix_tokens - shared
            of_questions = [self._case.question_tokens - (total - shared) for total in tokens]
            miss = abs(of_context) + sum(map(abs, of_questions[: self._case.questions]))
            if best is None or miss < best[0]:
                best = miss, self._sized(context, questions)
            if not miss or not self._resize(of_context, of_questions):
                break
        assert best is not None
        return best[1]

    def _resize(self, of_context: int, of_questions: Sequence[int]) -> bool:
        changed = [self.context.resize(of_context)]
        changed += [text.resize(part) for text, part in zip(self._instructions, of_questions, strict=True)]
        return any(changed)

    def _questions(self) -> Questions:
        return {
            f"question_{index + 1}": (
                {"type": "noul", "instructions": str(text)}
                if index % 2
                else {"type": "choice", "instructions": str(text), "criteria": list(labels)}
            )
            for index, (text, labels) in enumerate(zip(self._instructions, self._labels, strict=True))
        }

    def _sized(self, context: str, questions: Questions) -> SizedRequest:
        kept = dict(list(questions.items())[: self._case.questions])
        shared, tokens = self._counts(context, kept)
        return SizedRequest(context, kept, shared, tuple(tokens))

    def _counts(self, context: str, questions: Questions) -> tuple[int, Sequence[int]]:
        shared, tokens = self._count(context, questions)
        if len(tokens) != len(questions) or not all(0 <= shared < total for total in tokens):
            raise JevifyError(
                f"the engine measured {len(questions)} questions as {list(tokens)} tokens behind a prefix of "
                f"{shared}; each full question must count more than the prefix"
            )
        return shared, tokens


def distinct_labels(draw: random.Random) -> list[str]:
    """Labels of which none begins another, so that none needs an end marker."""
    while True:
        labels = draw.sample(_LABEL_WORDS, _LABELS_PER_CHOICE)
        if not any(a != b and a.startswith(b) for a in labels for b in labels):
            return labels
