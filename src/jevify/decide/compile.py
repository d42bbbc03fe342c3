"""From a context and questions to token ids: everything that is checked before the model runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jevify.decide.encodings import QuestionEncoder
from jevify.decide.jsonpath import json_path
from jevify.decide.plan import RequestPlan, share_prefix
from jevify.decide.questions import Question
from jevify.decide.request import Request
from jevify.decide.workflow import Workflow
from jevify.errors import InputError


@dataclass(frozen=True)
class CompiledRequest:
    """A request ready to run: its questions in order and their token plan."""

    questions: Mapping[str, Question]
    plan: RequestPlan

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


def compile_request(
    context: Any, questions: Workflow | Mapping[str, Any], encoder: QuestionEncoder, limits: Limits
) -> CompiledRequest:
    """Check, render and tokenize a request.

    context: a non-empty string, or a non-empty JSON object or array. Raises InputError for what Request and Workflow
    refuse and, telling the count and the limit, for too many questions or a full question that is too long: nothing
    is ever truncated.
    """
    asked = questions if isinstance(questions, Workflow) else Workflow.parse({"questions": questions}, "decide")
    context, workflow = Request.parse({"context": context}, "decide").resolve(asked)
    if len(workflow.questions) > limits.questions:
        raise InputError(
            f"the request has {len(workflow.questions)} questions, and the limit is {limits.questions}; split it"
        )
    encoded = []
    shared = encoder.shared_start()
    for name, question in workflow.questions.items():
        tokens, answers = encoder.encode(name, context, question, shared)
        longest = len(tokens) + max(len(path) for path in answers) - 1
        if len(tokens) > limits.question_tokens:
            raise InputError(
                f"{json_path(('questions', name))}: the full question is {len(tokens)} tokens, and the limit is "
                f"{limits.question_tokens}; shorten the context, the instructions or the options (or raise "
                f"max_question_tokens in Python)"
            )
        if longest > limits.context_length:
            raise InputError(
                f"{json_path(('questions', name))}: the full question is {longest} tokens, and the model reads at most "
                f"{limits.context_length}"
            )
        encoded.append((tokens, answers))
    return CompiledRequest(workflow.questions, share_prefix(encoded))
