"""What every file model shares: frozen, no unknown fields, errors that say where and what to do."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from jevify.decide.jsonpath import Loc, Problem, input_error, kind_of, shown
from jevify.decide.jsontext import parse_json, plain, read_text

_TOLD = "problem"
_KEY = "[key]"


def failure(title: str, problems: Iterable[Problem]) -> ValidationError:
    """Return the error to raise in a pydantic validator; its places start at the validated value."""
    details = [
        InitErrorDetails(type=PydanticCustomError(_TOLD, _literal(text)), loc=loc, input=None) for loc, text in problems
    ]
    return ValidationError.from_exception_data(title, details, hide_input=True)


def explained(error: ValidationError, fields: Iterable[str] = ()) -> list[Problem]:
    """Return the problems of a pydantic error in our words; `fields` are those the validated model knows."""
    return [(_place(detail), _explain(detail, fields)) for detail in error.errors(include_url=False)]


def _literal(text: str) -> Any:
    # pydantic types the template as a literal string; ours carries no context, so braces stay as they are.
    return text


def _place(detail: ErrorDetails) -> Loc:
    loc = detail["loc"]
    # A refused key is its own input, and pydantic marks it with one more part.
    return loc[:-1] if len(loc) > 1 and loc[-1] == _KEY and loc[-2] == detail["input"] else loc


def _explain(detail: ErrorDetails, fields: Iterable[str]) -> str:
    given, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is missing: add it"
        case "extra_forbidden":
            return f"is not a known field: remove it or use one of {', '.join(fields)}"
        case "string_type":
            return f"must be a string, not {kind_of(given)}"
        case "list_type":
            return f"must be an array, not {kind_of(given)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be an object, not {kind_of(given)}"
        case "too_short":
            return f"needs at least {context['min_length']} entry, has {context['actual_length']}: add one"
        case "too_long":
            return f"takes at most {context['max_length']} entries, has {len(given)}: remove some"
        case "literal_error":
            return f"must be {context['expected']}, not {shown(given)}"
        case _:
            return detail["msg"]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError(_TOLD, "must not be empty or blank: write some text")
    return text


Text = Annotated[str, Strict(), AfterValidator(_not_blank), WithJsonSchema({"type": "string", "pattern": r"\S"})]
"""Text with something to read in it, kept exactly as given."""

# pydantic would turn a pattern on keys into patternProperties, which lets other keys through.
Name = Annotated[str, Strict(), AfterValidator(_not_blank), WithJsonSchema({"type": "string", "minLength": 1})]
"""A key of a map, an id or a label: not blank, kept exactly as given."""


class Record(BaseModel):
    """Base of every part of a file: frozen, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise failure(cls.__name__, explained(error, cls.model_fields)) from None


class Document(Record):
    """Base of a whole file, read from disk, from JSON text or from a Python mapping."""

    kind: ClassVar[str]
    """What errors call a document that came from no file."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a UTF-8 JSON file; raises InputError that tells every problem with file name and JSON path."""
        return cls.parse(read_text(path), str(path))

    @classmethod
    def parse(cls, source: str | Mapping[str, Any], where: str | None = None) -> Self:
        """Check JSON text or a mapping (copied, never changed); `where` is its name in the InputError."""
        where = where or cls.kind
        data, problems = plain(parse_json(source, where) if isinstance(source, str) else source, where)
        try:
            document = cls.model_validate(data, context={"where": where})
        except ValidationError as error:
            problems += explained(error)
        if problems:
            raise input_error(where, problems)
        return document
