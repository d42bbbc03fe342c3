"""From a context and questions to token ids: everything that is checked before the model runs."""

import marshal
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.decide.encodings import QuestionEncoder
from jevify.decide.jsonpath import json_path
from jevify.decide.plan import RequestPlan, Tokens, share_prefix
from jevify.decide.questions import Choice, Noul, Question, Score
from jevify.decide.request import Request
from jevify.decide.rubric import Rubric, compile_rubric
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

# Workflows kept in compiled form: a few kilobytes each, and never a context.
CACHED_WORKFLOWS = 64


@dataclass(frozen=True)
class CompiledRequest:
    """A request ready to run: its questions in order and their token plan.

    compiled: whether only the context was tokenized; False when every question was rendered in full.
    """

    questions: Mapping[str, Question]
    plan: RequestPlan
    compiled: bool

    @property
    def question_tokens(self) -> list[int]:
        """Tokens of each full question, prefix included, label leaves excluded."""
        return [len(self.plan.prefix) + len(branch.tokens) for branch in self.plan.branches]


@dataclass(frozen=True)
class Limits:
    """Upper bounds of one request. `context_length` is the model's own limit in tokens."""

    questions: int
    question_tokens: int
    context_length: int


@dataclass(frozen=True)
class Known:
    """A workflow that was checked, and its compiled form. It shares nothing with the caller, who may change a list."""

    workflow: Workflow
    rubric: Rubric | None


@dataclass(frozen=True)
class Prepared:
    """A request that was checked, before its text is tokenized; "" where questions are rendered in full."""

    known: Known
    context: Any
    text: str


class RequestCompiler:
    """Checks, renders and tokenizes requests. What does not depend on the context is done once a workflow.

    Safe to use from several threads.
    """

    def __init__(self, encoder: QuestionEncoder, limits: Limits) -> None:
        self._encoder, self._limits = encoder, limits
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._guard = threading.Lock()

    def compile(self, context: Any, questions: Workflow | Mapping[str, Any]) -> CompiledRequest:
        """The tokens of one request.

        context: a non-empty string, or a non-empty JSON object or array. Raises InputError for what Request and
        Workflow refuse and, telling the count and the limit, for too many questions or a full question that is too
        long: nothing is ever truncated.
        """
        prepared = self.prepare(context, questions)
        return self.finish(prepared, *self.tokenize([prepared]))

    def prepare(self, context: Any, questions: Workflow | Mapping[str, Any]) -> Prepared:
        """Check a request and find the text of it that must be tokenized. Raises InputError as `compile` does."""
        key = _key(questions)
        known = self._find(key)
        if known is None:
            asked = questions if isinstance(questions, Workflow) else Workflow.parse({"questions": questions}, "decide")
            context, workflow = Request.parse({"context": context}, "decide").resolve(asked)
            self._check_number(workflow)
            known = self._learn(_content(workflow.questions) if key is None else key, workflow)
        elif not _plainly_fine(context):
            context, _ = Request.parse({"context": context}, "decide").resolve(known.workflow)
        text = known.rubric.text(context) if known.rubric else ""
        self._check_size(text or (context if isinstance(context, str) else ""))
        self._encoder.check_text(text)
        return Prepared(known, context, text)

    def tokenize(self, prepared: Sequence[Prepared]) -> list[Tokens]:
        """The tokens of each request's text, in one call."""
        return self._encoder.encode_texts([request.text for request in prepared])

    def finish(self, prepared: Prepared, tokens: Tokens) -> CompiledRequest:
        """The request with its text's `tokens`. Raises InputError for lengths, as `compile` does."""
        rubric, asked = prepared.known.rubric, prepared.known.workflow.questions
        plan = rubric.plan(tokens) if rubric else None
        request = CompiledRequest(asked, plan or self._rendered(prepared.context, asked), plan is not None)
        self._check_lengths(request)
        return request

    def _find(self, key: Hashable | None) -> Known | None:
        if key is None:
            return None
        with self._guard:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _learn(self, key: Hashable | None, workflow: Workflow) -> Known:
        """The compiled form of a checked workflow: the one kept first, also where threads compile it at once."""
        known = self._find(key)
        if known is None:
            workflow = workflow.model_copy(deep=True)
            known = Known(workflow, compile_rubric(self._encoder, workflow.questions))
            known = known if key is None else self._keep(key, known)
        return known

    def _keep(self, key: Hashable, known: Known) -> Known:
        with self._guard:
            kept = self._known.setdefault(key, known)
            if len(self._known) > CACHED_WORKFLOWS:
                self._known.popitem(last=False)
            return kept

    def _rendered(self, context: Any, questions: Mapping[str, Question]) -> RequestPlan:
        """The plan from full renders of every question."""
        return share_prefix([self._encoder.encode(name, context, asked) for name, asked in questions.items()])

    def _check_number(self, workflow: Workflow) -> None:
        if len(workflow.questions) > self._limits.questions:
            raise InputError(
                f"the request has {len(workflow.questions)} questions, and the limit is {self._limits.questions}; "
                "split it"
            )

    def _check_size(self, text: str) -> None:
        """Refuse what is far too long before it is tokenized, which takes hundreds of times its memory."""
        if self._encoder.least_tokens(text) > self._limits.question_tokens:
            raise InputError(
                f"the text is {len(text):,} characters long, which no {self._limits.question_tokens} tokens can hold; "
                "shorten the context"
            )

    def _check_lengths(self, request: CompiledRequest) -> None:
        limits, prefix = self._limits, len(request.plan.prefix)
        for name, branch in zip(request.questions, request.plan.branches, strict=True):
            tokens = prefix + len(branch.tokens)
            if tokens > limits.question_tokens:
                raise InputError(
                    f"{json_path(('questions', name))}: the full question is {tokens} tokens, and the limit is "
                    f"{limits.question_tokens}; shorten the context, the instructions or the options (or raise "
                    f"max_question_tokens in Python)"
                )
            longest = tokens + max(map(len, branch.answers)) - 1
            if longest > limits.context_length:
                raise InputError(
                    f"{json_path(('questions', name))}: the full question is {longest} tokens, and the model reads at "
                    f"most {limits.context_length}"
                )


def _key(questions: Any) -> Hashable | None:
    """What stands for `questions` in the cache; None when nothing cheap is sure to tell two of them apart."""
    if isinstance(questions, Workflow):
        content = _content(questions.questions)
        # Apart from mappings, which are checked again: a workflow may have been broken in place.
        return None if content is None else (Workflow, content)
    if type(questions) is not dict:
        return None
    if all(type(question) in (Choice, Noul, Score) for question in questions.values()):
        return _content(questions)
    try:
        # Tells 1 from "1" and a list from a tuple, and refuses all but the built-in types; version 2 writes equal
        # values alike, whoever else refers to their parts.
        return marshal.dumps(questions, 2)
    except ValueError:
        return None


def _content(questions: Mapping[Any, Question]) -> Hashable | None:
    """All that is read of `questions`; None when it is not all text.

    Not their identities: the lists and mappings inside a frozen question can change, and addresses are used again.
    """
    parts = []
    for name, question in questions.items():
        labels = question.labels
        texts = (name, question.instructions, *labels, *question.descriptions)
        if any(type(text) is not str and text is not None for text in texts):
            return None
        parts.append((type(question), len(labels), texts))
    return tuple(parts)


def _plainly_fine(context: Any) -> bool:
    """Whether `context` needs no closer look: text with something to read in it, all of it characters."""
    if type(context) is not str or not context.strip():
        return False
    try:
        context.encode()
    except UnicodeEncodeError:
        return False
    return True
