"""The rubric: what is asked, apart from any context."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from jevify.decide.document import Document
from jevify.decide.jsonpath import Loc, Problem, quoted
from jevify.decide.questions import Question, Questions

Decision = TypeVar("Decision", covariant=True)


class Decides(Protocol[Decision]):
    """Whatever answers a workflow about a context."""

    def decide(self, context: Any, questions: "Workflow", *, mode: Literal["parallel", "independent"]) -> Decision:
        """Answer every question about the context."""
        ...


class Workflow(Document):
    """A rubric: typed questions by id, without any context."""

    kind: ClassVar[str] = "workflow"

    questions: Questions

    def digest(self) -> str:
        """Return the sha256 hex of the questions as canonical JSON; the order of ids and labels counts."""
        canonical = [
            [name, question.type, question.instructions, question.labels, question.descriptions]
            for name, question in self.questions.items()
        ]
        text = json.dumps(canonical, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def run(
        self,
        engine: Decides[Decision],
        context: str | Mapping[str, Any] | Sequence[Any] | None = None,
        prompt: str | None = None,
        prompts: Mapping[str, str] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        mode: Literal["parallel", "independent"] = "parallel",
    ) -> Decision:
        """Check the parts as a request and return `engine.decide` of it; raises InputError before that."""
        from jevify.decide.request import Request  # a request is checked against a workflow

        parts = {"context": context, "prompt": prompt, "prompts": prompts, "messages": messages}
        value, workflow = Request.parse(parts, "Workflow.run").resolve(self)
        return engine.decide(value, workflow, mode=mode)


def apply_prompts(
    workflow: Workflow, prompt: str | None, prompts: Mapping[str, str] | None
) -> tuple[Workflow, list[Problem]]:
    """Return a copy with the replacements that could be made, and why others could not, for texts already checked."""
    known = ", ".join(quoted(name) for name in workflow.questions)
    if prompt is not None and prompts is not None:
        return workflow, [(("prompts",), 'cannot be given together with "prompt": keep one of them')]
    if prompt is not None and len(workflow.questions) != 1:
        text = (
            f"replaces the instructions of a one-question workflow, but this one has"
            f' {len(workflow.questions)} questions: use "prompts" with the ids {known}'
        )
        return workflow, [(("prompt",), text)]

    places: dict[str, tuple[Loc, str]] = {}
    if prompt is not None:
        places = dict.fromkeys(workflow.questions, (("prompt",), prompt))
    elif prompts is not None:
        places = {name: (("prompts", name), text) for name, text in prompts.items()}

    questions: dict[str, Question] = dict(workflow.questions)
    problems: list[Problem] = []
    for name, (loc, text) in places.items():
        if name not in questions:
            problems.append((loc, f"is no question of the workflow: use one of {known}"))
            continue
        questions[name] = questions[name].with_instructions(text)
    return Workflow(questions=questions), problems
