"""The OpenAPI document of the endpoints, and a page that shows it without anything from elsewhere."""

import html
import json
from collections.abc import Mapping
from typing import Any

from jevify import __version__
from jevify.decide.questions import MAX_OPTIONS

Schema = dict[str, Any]

_CONTENT: list[Schema] = [{"type": "string", "pattern": r"\S"}, {"type": "object"}, {"type": "array"}]
_CONTEXT: Schema = {
    "description": "What is decided about. Objects and arrays are shown to the model as JSON.",
    "anyOf": [
        {"type": "string", "pattern": r"\S"},
        {"type": "object", "minProperties": 1},
        {"type": "array", "minItems": 1},
    ],
}
_MEANING: Schema = {"anyOf": _CONTENT}
_OPTIONAL: Schema = {"anyOf": [*_CONTENT, {"type": "null"}]}
_NAME: Schema = {"type": "string", "pattern": r"\S"}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}


def document() -> Schema:
    """The document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jevify",
            "version": __version__,
            "description": "Typed decisions about a text or JSON value, read off a language model in one pass.",
        },
        "paths": {
            "/v1/systemone": {"post": _asking("Answer questions about a state", "SystemOneRequest")},
            "/v1/workflows/{name}": {
                "get": _getting("A stored workflow", "Workflow", name=True, errors=("404", *_KEY)),
                "post": _asking("Answer the questions of a stored workflow", "WorkflowRequest", name=True),
            },
            "/v1/workflows": {"get": _getting("The names of the stored workflows", "Workflows", errors=_KEY)},
            "/v1/models": {"get": _getting("The model and its alias", "Models", errors=_KEY)},
            "/health/live": {"get": _getting("Whether the process runs", "Health", secured=False)},
            "/health/ready": {
                "get": _getting("Whether requests are taken", "Health", secured=False, errors=("503",), health=True)
            },
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def docs_page() -> str:
    """The document as a plain HTML page."""
    found = document()
    parts = []
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            asks = f"<p>Body: <code>{_reference(body)}</code></p>" if body else ""
            replies = "".join(
                f"<li>{status}: {html.escape(reply['description'])}</li>"
                for status, reply in operation["responses"].items()
            )
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(operation['summary'])}</p>{asks}<ul>{replies}</ul>"
            )
    for name, schema in found["components"]["schemas"].items():
        text = html.escape(json.dumps(schema, indent=2))
        parts.append(f'<h3 id="{name}">{name}</h3><pre>{text}</pre>')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>jevify API</title><style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;"
        "max-width:50rem;margin:2rem auto;padding:0 1rem}pre{overflow:auto}</style>"
        '<h1>jevify API</h1><p>The same for machines: <a href="/openapi.json">openapi.json</a>.</p>'
        f"{''.join(parts)}</html>"
    )


_KEY = ("401", "403")
_ERRORS = {
    "401": "Wrong API key",
    "403": "No API key",
    "404": "No such model or workflow",
    "408": "The body took too long",
    "413": "The body is too large",
    "422": "The body is not accepted; every problem with its place",
    "429": "Too much is waiting; come again after retry-after-ms",
    "500": "The engine failed on this request",
    "503": "Shutting down, stuck, or no answer before the deadline",
    "529": "The model is loading",
}


def _asking(summary: str, schema: str, *, name: bool = False) -> Schema:
    debug = {
        "name": "debug",
        "in": "query",
        "description": "1: add `debug` to the answer",
        "schema": {"type": "string", "enum": ["0", "1"]},
    }
    encoding = {
        "name": "content-encoding",
        "in": "header",
        "description": "How the body is compressed",
        "schema": {"type": "string", "enum": ["identity", "zstd"]},
    }
    made = _operation(summary, tuple(_ERRORS), "SystemOneResponse", name=name)
    made["parameters"] = [*made.get("parameters", []), debug, encoding]
    made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(schema)}}}
    return made


def _getting(
    summary: str,
    schema: str,
    *,
    name: bool = False,
    secured: bool = True,
    errors: tuple[str, ...] = (),
    health: bool = False,
) -> Schema:
    made = _operation(summary, errors, schema, name=name, secured=secured)
    if health:
        made["responses"]["503"] = _reply("Not now", schema)
    return made


def _operation(
    summary: str, errors: tuple[str, ...], schema: str, *, name: bool = False, secured: bool = True
) -> Schema:
    made: Schema = {"summary": summary, "responses": {"200": _reply("Done", schema)}}
    for status in errors:
        made["responses"][status] = _reply(_ERRORS[status], "Problems" if status == "422" else "Error")
    if secured:
        made["security"] = [{"key": []}, {}]
    if name:
        made["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return made


def _reply(description: str, schema: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _reference(schema: Mapping[str, Any]) -> str:
    name = schema["$ref"].rpartition("/")[2]
    return f'<a href="#{name}">{name}</a>'


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _map(values: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": values, "propertyNames": _NAME, "minProperties": 1, **more}


def _schemas() -> Schema:
    truth = {"anyOf": [_object({}, {"true": _OPTIONAL, "false": _OPTIONAL}), {"type": "null"}]}
    labels = {"type": "array", "items": _NAME, "minItems": 1, "maxItems": MAX_OPTIONS, "uniqueItems": True}
    questions = {
        "ChoiceQuestion": _object(
            {
                "type": {"const": "choice"},
                "criteria": {"anyOf": [_map(_OPTIONAL, maxProperties=MAX_OPTIONS), labels]},
            },
            {"instructions": _OPTIONAL},
        ),
        "NoulQuestion": {
            **_object({"type": {"const": "noul"}}, {"instructions": _OPTIONAL, "criteria": truth}),
            "description": "Instructions, or a description of true or false, must say what is asked.",
        },
        "ScoreQuestion": _object(
            {
                "type": {"const": "score"},
                "criteria": {"type": "array", "items": _MEANING, "minItems": 1, "maxItems": MAX_OPTIONS},
            },
            {"instructions": _OPTIONAL},
        ),
    }
    shares = {"type": "object", "additionalProperties": _SHARE}
    answers = {
        "ChoiceAnswer": _object(
            {"type": {"const": "choice"}, "choice": {"type": "string"}, "confidence": _SHARE, "probabilities": shares}
        ),
        "NoulAnswer": _object({"type": {"const": "noul"}, "noul": _SHARE}),
        "ScoreAnswer": _object(
            {
                "type": {"const": "score"},
                "score": {"type": "number", "minimum": 0},
                "legend": {"type": "object", "additionalProperties": _MEANING},
                "confidence": _SHARE,
                "probabilities": shares,
            }
        ),
    }
    place = {"type": "array", "items": {"type": ["string", "integer"]}}
    problem = _object({"loc": place, "msg": {"type": "string"}, "type": {"type": "string"}})
    count = {"type": "integer", "minimum": 0}
    return {
        "SystemOneRequest": _object(
            {"state": _CONTEXT, "model": {"type": "string"}, "questions": _map(_ref("Question"))},
            {"assets": {"type": "null", "description": "Images; this is a text model."}},
        ),
        "WorkflowRequest": _object({"context": _CONTEXT}),
        "Question": {"oneOf": [_ref(name) for name in questions]},
        **questions,
        "SystemOneResponse": _object(
            {
                "model": {"type": "string"},
                "answers": {"type": "object", "additionalProperties": _ref("Answer")},
                "usage": _object({"input_tokens": count, "output_tokens": {"const": 0}}),
            },
            {"debug": {"type": "object"}},
        ),
        "Answer": {"oneOf": [_ref(name) for name in answers]},
        **answers,
        "Models": _object(
            {
                "models": {
                    "type": "array",
                    "items": _object({name: {"type": "string"} for name in ("name", "description", "release_date")}),
                }
            }
        ),
        "Workflows": _object({"workflows": {"type": "array", "items": {"type": "string"}}}),
        "Workflow": _object({"questions": {"type": "object"}}),
        "Health": _object({"status": {"enum": ["live", "ready", "loading", "draining", "wedged", "failing"]}}),
        "Error": _object({"detail": {"type": "string"}}),
        "Problems": _object({"detail": {"type": "array", "items": problem}}),
    }
