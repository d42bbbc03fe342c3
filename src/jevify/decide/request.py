"""What one call brings along: the context, and prompts or messages that go with it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, Strict, ValidationInfo, field_validator

from jevify.decide.document import Document, Record, Text, failure
from jevify.decide.jsonpath import Loc, Problem, input_error, kind_of, quoted, shown
from jevify.decide.questions import Noul, Question, Questions, Score
from jevify.decide.workflow import Workflow, apply_prompts


def _checked_context(value: Any) -> Any:
    if not isinstance(value, str | dict | list):
        raise failure("context", [((), f"must be a string, an object or an array, not {kind_of(value)}")])
    if not value or (isinstance(value, str) and not value.strip()):
        raise failure("context", [((), "must not be empty: give the text or data to decide about")])
    return value


Context = Annotated[
    Text | Annotated[dict[str, Any], Field(min_length=1)] | Annotated[list[Any], Field(min_length=1)],
    BeforeValidator(_checked_context),
]
"""What is decided about: text, or a JSON object or array; never empty, kept exactly as given."""


class Message(Record):
    """One turn of a conversation that is data to decide about, never run as a turn of the model's own."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, Strict()]


class _Sourced(Document):
    _where: str = PrivateAttr("")

    def model_post_init(self, context: Any, /) -> None:
        """Remember the name of the source for errors found later."""
        self._where = (context or {}).get("where", self.kind)


class Request(_Sourced):
    """One request: a context, messages or both, and prompts that replace instructions of the workflow."""

    kind: ClassVar[str] = "request"

    context: Context | None = None
    prompt: Text | None = None
    prompts: dict[str, Text] | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None

    def resolve(self, workflow: Workflow) -> tuple[Any, Workflow]:
        """Return the context value and the workflow with the prompts applied; neither input is changed.

        The value is the context itself, or an object with "messages" and, if given, "context". Raises
        InputError that tells every problem: no context, prompts that do not fit the workflow, questions that
        ask nothing.
        """
        asked, problems = apply_prompts(workflow, self.prompt, self.prompts)
        if self.context is None and self.messages is None:
            problems.append((("context",), 'is missing: give a "context" or "messages"'))
        if self.messages is not None and not any(message.content.strip() for message in self.messages):
            problems.append((("messages",), "must not all be blank: give the text to decide about"))
        refused = {loc for loc, _ in problems}
        if ("prompt",) not in refused and ("prompts",) not in refused:
            single = len(workflow.questions) == 1
            problems += _unasked(
                asked,
                lambda name: ("prompt",) if single else ("prompts", name),
                'here what is asked, or add "instructions" to it in the workflow',
            )
        if problems:
            raise input_error(self._where, problems)
        return self._value(), asked

    def _value(self) -> Any:
        if self.messages is None:
            return self.context
        messages = [message.model_dump() for message in self.messages]
        return {"messages": messages} if self.context is None else {"context": self.context, "messages": messages}


def _unasked(workflow: Workflow, place: Callable[[str], Loc], say: str) -> list[Problem]:
    return [
        (
            place(name),
            f"is missing: question {quoted(name)} has neither instructions nor described options: say {say}",
        )
        for name, question in workflow.questions.items()
        if question.needs_prompt
    ]


def _expected_label(question: Question, value: Any) -> str:
    if isinstance(question, Noul) and isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(question, Score) and type(value) is int and 0 <= value < len(question.criteria):
        return str(value)
    if isinstance(value, str) and value in question.labels:
        return value
    raise ValueError(f"{shown(value)} is no answer of this {question.type}: use {_answers(question)}")


def _answers(question: Question) -> str:
    if isinstance(question, Noul):
        return 'true, false, "yes" or "no"'
    if isinstance(question, Score):
        return f"a level from 0 to {len(question.criteria) - 1}"
    return "one of " + ", ".join(quoted(label) for label in question.labels)


_EXPECTED_SCHEMA = {
    "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "integer"}]},
}


class Combined(_Sourced):
    """One file with everything: the context, the questions and, for evaluation, the labels expected."""

    kind: ClassVar[str] = "input"

    context: Context
    questions: Questions
    expected_labels: Annotated[dict[str, str], Field(json_schema_extra=_EXPECTED_SCHEMA)] | None = None
    """Label texts by question id; a file may give true and false for a noul, a whole number for a score."""

    @field_validator("expected_labels", mode="before")
    @classmethod
    def _label_texts(cls, value: Any, info: ValidationInfo) -> Any:
        questions: dict[str, Question] | None = info.data.get("questions")
        if not isinstance(value, Mapping):
            return value
        if questions is None:
            # What is wrong with the questions is told already; labels can be checked once that is mended.
            return None
        labels: dict[str, str] = {}
        problems: list[Problem] = []
        for name, label in value.items():
            if name not in questions:
                known = ", ".join(quoted(known) for known in questions)
                problems.append(((name,), f"is no question of this file: use one of {known}"))
                continue
            try:
                labels[name] = _expected_label(questions[name], label)
            except ValueError as error:
                problems.append(((name,), str(error)))
        if problems:
            raise failure("expected_labels", problems)
        return labels

    @property
    def workflow(self) -> Workflow:
        """The questions alone."""
        return Workflow(questions=self.questions)

    def resolve(self) -> tuple[Any, Workflow]:
        """Return the context and the workflow; raises InputError that tells every question that asks nothing."""
        workflow = self.workflow
        problems = _unasked(workflow, lambda name: ("questions", name, "instructions"), "here what is asked")
        if problems:
            raise input_error(self._where, problems)
        return self.context, workflow
