"""How an option is answered: by a single-token letter or by its label's own text.

letters: one token an option (A to Z, beyond 26 options a set of two-letter tokens).
labels: the log-likelihood of the whole label text, without length normalization.
A noul question is answered by the model's false / true tokens under both.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from string import ascii_uppercase
from typing import Any

from jevify.decide.chat import ChatEncoder
from jevify.decide.jsonpath import json_path
from jevify.decide.plan import Tokens, common_length
from jevify.decide.prompts import LAYOUTS, SYSTEM, QuestionText
from jevify.decide.questions import Noul, Question, Score
from jevify.errors import InputError, UnsupportedModelError

ENCODINGS = ("letters", "labels")
DEFAULT_INSTRUCTIONS = {
    "choice": "Which option fits the context best?",
    "noul": "Does the context fit the description of true?",
    "score": "Which level fits the context best?",
}
"""What is asked, by question type, where neither instructions nor anyone else says it."""


class QuestionEncoder:
    """Turns a question about a context into prompt ids and a token path for each option."""

    def __init__(self, chat: ChatEncoder, *, layout: str, encoding: str, max_label_tokens: int) -> None:
        self._chat = chat
        self._layout = LAYOUTS[layout]
        self._encoding = encoding
        self._max_label_tokens = max_label_tokens
        self._letters: tuple[str, ...] | None = None
        self._opening = chat.opening(SYSTEM)
        self._truth = self._truth_words()

    def encode(self, name: str, context: Any, question: Question) -> tuple[Tokens, tuple[Tokens, ...]]:
        """Ids of the full question up to the answer, and the path of each option in label order.

        Raises InputError, naming the question `name`, when there are more options than single-token letters, a label is
        longer than the limit, or two labels have the same ids.
        """
        answers, after = self.after(name, question)
        prompt, full = self._chat.encode(SYSTEM, self._layout.before(context) + after, answers)
        return self._parted(name, answers, prompt, full)

    def before(self, context: Any) -> tuple[Tokens, str]:
        """The ids that come before the stretch of text that holds the context, and that stretch up to the question."""
        ids, text = self._opening
        return ids, text + self._layout.before(context)

    def after(self, name: str, question: Question) -> tuple[tuple[str, ...], str]:
        """The texts of a question's answers, and the user's text after the context. Raises InputError as `encode`."""
        answers = self._answer_texts(name, question)
        text = QuestionText(
            instructions=question.instructions or DEFAULT_INSTRUCTIONS[question.type],
            options=tuple(self._options(question, answers)),
            answer_with=self._answer_with(question),
        )
        return answers, self._layout.after(text)

    def closing(self, name: str, answers: tuple[str, ...], text: str) -> tuple[Tokens, tuple[Tokens, ...]]:
        """As `encode`, of nothing but `text`, the end of what `after` gave."""
        return self._parted(name, answers, *self._chat.closing(text, answers))

    def check_text(self, text: str) -> None:
        """Raise InputError for a character that the vocabulary cannot express."""
        self._chat.check_text(text)

    def least_tokens(self, text: str) -> int:
        """See ChatEncoder."""
        return self._chat.least_tokens(text)

    def encode_texts(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of plain texts that were checked."""
        return self._chat.encode_texts(texts)

    def word_starts(self, text: str) -> list[int]:
        """Where pre-tokens of `text` begin with an ASCII character that is no space."""
        return self._chat.word_starts(text)

    def _parted(
        self, name: str, answers: tuple[str, ...], prompt: Tokens, full: list[Tokens]
    ) -> tuple[Tokens, tuple[Tokens, ...]]:
        """A prompt up to where its continuations by the answers part, and what is theirs."""
        begin = common_length([prompt, *full])
        paths = [ids[begin:] for ids in full]
        self._check(name, answers, paths)
        if self._encoding == "labels" and (_nested(answers) or _nested(paths)):
            paths = [(*path, self._chat.end_of_turn) for path in paths]
        return prompt[:begin], tuple(paths)

    def _answer_texts(self, name: str, question: Question) -> tuple[str, ...]:
        if isinstance(question, Noul):
            return self._truth
        if self._encoding == "labels":
            return question.labels
        count = len(question.labels)
        if count <= len(ascii_uppercase):
            return tuple(ascii_uppercase[:count])
        if self._letters is None:
            pairs = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]
            self._letters = tuple(self._single_token(pairs))
        if count > len(self._letters):
            raise InputError(
                f"{_place(name)}: {count} options, but this model has only {len(self._letters)} single-token "
                "letters; use --answer-encoding labels or fewer options"
            )
        return self._letters[:count]

    def _options(self, question: Question, answers: tuple[str, ...]) -> Iterable[tuple[str, str]]:
        for answer, label, description in zip(answers, question.labels, question.descriptions, strict=True):
            if isinstance(question, Noul | Score) or answer == label:
                yield answer, description or ""
            else:
                yield answer, f"{label}: {description}" if description else label

    def _answer_with(self, question: Question) -> str:
        if isinstance(question, Noul):
            return f"Answer with {self._truth[1]} or {self._truth[0]} only."
        if self._encoding == "letters":
            return "Answer with the letter of one option only."
        return (
            "Answer with the number of one level only."
            if isinstance(question, Score)
            else "Answer with one option only."
        )

    def _truth_words(self) -> tuple[str, str]:
        for pair in (("false", "true"), ("False", "True")):
            if len(self._single_token(pair)) == 2:
                return pair
        raise UnsupportedModelError("the model cannot be used: its tokenizer has no single tokens for false and true")

    def _single_token(self, texts: Iterable[str]) -> list[str]:
        """Those of `texts` that are one token of their own where an answer begins."""
        texts = list(texts)
        prompt, full = self._chat.encode("", "", texts)
        return [
            text for text, ids in zip(texts, full, strict=True) if ids[:-1] == prompt and len(ids) == len(prompt) + 1
        ]

    def _check(self, name: str, answers: tuple[str, ...], paths: list[Tokens]) -> None:
        seen: dict[Tokens, str] = {}
        for answer, path in zip(answers, paths, strict=True):
            if len(path) > self._max_label_tokens:
                raise InputError(
                    f"{_place(name)}: label {answer!r} takes {len(path)} tokens, and the limit is "
                    f"{self._max_label_tokens}; shorten it or raise --max-label-tokens"
                )
            if path in seen:
                raise InputError(
                    f"{_place(name)}: labels {seen[path]!r} and {answer!r} are the same tokens to this model; "
                    "rename one"
                )
            seen[path] = answer


def _nested(answers: Sequence[str] | Sequence[Tokens]) -> bool:
    """Whether one answer, as text or as tokens, begins another: sorted, it would begin its successor."""
    ordered: list[Any] = sorted(answers)
    return any(later[: len(earlier)] == earlier for earlier, later in pairwise(ordered))


def _place(name: str) -> str:
    return json_path(("questions", name))
