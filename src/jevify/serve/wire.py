"""The System One format: from its JSON to a context and questions, and from a decision to its JSON.

`state`, instructions and descriptions may be JSON objects or arrays there: the model is shown them as JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.decide.compile import CompiledRequest
from jevify.decide.decision import Decision
from jevify.decide.encodings import DEFAULT_INSTRUCTIONS
from jevify.decide.jsonpath import Problem, input_error, kind_of
from jevify.decide.jsontext import parse_json, plain
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

ALIAS = "jev-latest"
"""A name that every model answers to: the SDK's default."""

_FIELDS = ("state", "model", "questions", "assets")
_NO_IMAGES = "this is a text model and takes no images"


@dataclass(frozen=True)
class Asked:
    """What a body asks. `model` is None where the body does not say; `legends` holds the levels of scores as given."""

    context: Any
    questions: Workflow | Mapping[str, Any]
    model: str | None = None
    legends: Mapping[str, Sequence[Any]] | None = None


def parse_body(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises InputError with the problems and their places."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"body: not UTF-8 text (byte {error.start} cannot be read)") from None
    value, problems = plain(parse_json(text, "body"), "body")
    if not problems and not isinstance(value, dict):
        problems = [((), f"must be an object, not {kind_of(value)}")]
    if problems:
        raise input_error("body", problems)
    found: dict[str, Any] = value
    return found


def read_system_one(body: bytes) -> Asked:
    """What a body of /v1/systemone asks; the engine checks the questions themselves. Raises InputError."""
    value = parse_body(body)
    problems = _unknown(value, _FIELDS)
    problems += [((name,), "is missing: add it") for name in _FIELDS[:3] if name not in value]
    if value.get("assets") is not None:
        problems.append((("assets",), f"{_NO_IMAGES}: leave assets out"))
    if "model" in value and not isinstance(value["model"], str):
        problems.append((("model",), f"must be a string, not {kind_of(value['model'])}"))
    questions = value.get("questions")
    if isinstance(questions, dict):
        for name, question in questions.items():
            problems += _unanswerable(name, question)
    if problems:
        raise input_error("body", problems)
    if not isinstance(questions, dict):
        raise input_error("body", [(("questions",), f"must be an object, not {kind_of(questions)}")])
    legends = {
        name: question["criteria"]
        for name, question in questions.items()
        if isinstance(question, dict) and question.get("type") == "score" and isinstance(question.get("criteria"), list)
    }
    texts = {name: _in_text(question) for name, question in questions.items()}
    return Asked(value["state"], texts, value["model"], legends)


def read_context(body: bytes, workflow: Workflow) -> Asked:
    """What a body of /v1/workflows/{name} asks: `{"context": ...}`. Raises InputError."""
    value = parse_body(body)
    problems = _unknown(value, ("context",))
    if "context" not in value:
        problems.append((("context",), "is missing: add it"))
    if problems:
        raise input_error("body", problems)
    return Asked(value["context"], workflow)


def answer(decision: Decision, request: CompiledRequest, asked: Asked) -> dict[str, Any]:
    """The reply of /v1/systemone to `asked`."""
    return {
        "model": decision["model"],
        "answers": {name: _answer(name, found, asked) for name, found in decision["answers"].items()},
        "usage": {"input_tokens": request.plan.tokens, "output_tokens": 0},
    }


def packed_tree(request: CompiledRequest) -> list[dict[str, Any]]:
    """The segments of a request's token tree: `parent` (an index into this list, or None), `tokens`, `label`.

    The shared prefix is the root; branches are labelled by question id, leaves, the label paths of two tokens or more,
    by the option.
    """
    plan = request.plan
    segments: list[dict[str, Any]] = []
    root = None
    if plan.prefix:
        root = 0
        segments.append({"parent": None, "tokens": len(plan.prefix), "label": "prefix"})
    for (name, question), branch in zip(request.questions.items(), plan.branches, strict=True):
        here = len(segments)
        segments.append({"parent": root, "tokens": len(branch.tokens), "label": name})
        for label, path in zip(question.labels, branch.answers, strict=True):
            if len(path) > 1:
                segments.append({"parent": here, "tokens": len(path) - 1, "label": label})
    return segments


def _unknown(value: Mapping[str, Any], fields: Sequence[str]) -> list[Problem]:
    return [
        ((name,), f"is not a known field: remove it or use one of {', '.join(fields)}")
        for name in value
        if name not in fields
    ]


def _unanswerable(name: str, question: Any) -> list[Problem]:
    """What only this format lets one ask, and what the engine would tell in words of its own files."""
    if not isinstance(question, dict):
        return []
    if question.get("type") == "box":
        return [(("questions", name, "type"), f"a box is found in an image, and {_NO_IMAGES}")]
    if question.get("type") == "noul" and question.get("instructions") is None:
        criteria = question.get("criteria")
        if criteria is None or (isinstance(criteria, dict) and not any(criteria.values())):
            text = 'is missing: say what is asked, or describe "true" or "false" in criteria'
            return [(("questions", name, "instructions"), text)]
    return []


def _in_text(question: Any) -> Any:
    """A question with JSON objects and arrays as text; what is no question is left for the engine to refuse."""
    if not isinstance(question, dict):
        return question
    found = {**question}
    if "instructions" in found:
        found["instructions"] = _text(found["instructions"])
    criteria = found.get("criteria")
    if isinstance(criteria, dict):
        found["criteria"] = {label: _text(meaning) for label, meaning in criteria.items()}
    elif isinstance(criteria, list) and found.get("type") == "score":
        found["criteria"] = [_text(meaning) for meaning in criteria]
    if found.get("type") == "choice" and found.get("instructions") is None:
        # The format lets the names of the options say what is asked.
        found["instructions"] = DEFAULT_INSTRUCTIONS["choice"]
    return found


def _text(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _answer(name: str, found: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    if found["type"] == "noul":
        return {"type": "noul", "noul": found["noul"]}
    if found["type"] == "score" and asked.legends and name in asked.legends:
        levels = asked.legends[name]
        return {**found, "legend": {str(level): meaning for level, meaning in enumerate(levels)}}
    return dict(found)
