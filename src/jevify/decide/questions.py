"""The three question types and what each may answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, Strict, ValidationError, WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from jevify.decide.document import Name, Record, Text, explained, failure
from jevify.decide.jsonpath import Problem, kind_of, quoted, shown

MAX_OPTIONS = 255
"""Most options of a choice, and most levels of a score."""


def _require_type(schema: dict[str, Any]) -> None:
    # Python fills the type in; a file must state it.
    schema["required"] = ["type", *schema.get("required", [])]


class _Question(Record, ABC):
    model_config = ConfigDict(json_schema_extra=_require_type)

    type: str
    instructions: Text | None = None

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The possible answers, in order."""

    @property
    @abstractmethod
    def descriptions(self) -> tuple[str | None, ...]:
        """What each label means, aligned with `labels`; None where nothing is said."""

    @property
    def needs_prompt(self) -> bool:
        """True when neither instructions nor any description say what is asked."""
        return self.instructions is None and not any(self.descriptions)

    def with_instructions(self, text: str) -> Self:
        """Return a copy that asks `text`; raises a pydantic ValidationError when it is blank."""
        return self.model_validate({**dict(self), "instructions": text})


def _map_of_labels(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    problems: list[Problem] = []
    seen: dict[str, None] = {}
    for index, label in enumerate(value):
        if not isinstance(label, str):
            problems.append(((index,), f"must be a string, not {kind_of(label)}: labels are texts"))
        elif not label.strip():
            problems.append(((index,), "must not be empty or blank: write a label"))
        elif label in seen:
            problems.append(((index,), f"repeats the label {quoted(label)}: rename or remove one"))
        else:
            seen[label] = None
    if problems:
        raise failure("criteria", problems)
    return seen


_LabelMap = Annotated[dict[Name, Text | None], Field(min_length=1, max_length=MAX_OPTIONS)]
_LabelList = Annotated[list[Text], Field(min_length=1, max_length=MAX_OPTIONS, json_schema_extra={"uniqueItems": True})]


class Choice(_Question):
    """One label out of 1 to 255; `criteria` maps each to its description or null, or lists the labels."""

    type: Literal["choice"] = "choice"
    criteria: Annotated[_LabelMap, BeforeValidator(_map_of_labels, json_schema_input_type=_LabelMap | _LabelList)]

    if TYPE_CHECKING:
        # A type checker knows only the field's own type, and would refuse a list of labels.
        def __init__(
            self,
            *,
            criteria: Mapping[str, str | None] | list[str] | tuple[str, ...],
            instructions: str | None = None,
            type: Literal["choice"] = "choice",
        ) -> None: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order given."""
        return tuple(self.criteria)

    @property
    def descriptions(self) -> tuple[str | None, ...]:
        """The description of each label, or None."""
        return tuple(self.criteria.values())


class NoulCriteria(Record):
    """What makes the answer true, and what makes it false."""

    true: Text | None = None
    false: Text | None = None


class Noul(_Question):
    """Yes or no; the answer is the probability of yes."""

    type: Literal["noul"] = "noul"
    criteria: NoulCriteria | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """("no", "yes")."""
        return ("no", "yes")

    @property
    def descriptions(self) -> tuple[str | None, ...]:
        """The descriptions of false and true, in this order."""
        return (self.criteria.false, self.criteria.true) if self.criteria else (None, None)


class Score(_Question):
    """A level on a scale; `criteria` describes 1 to 255 levels from the lowest, which is level 0."""

    type: Literal["score"] = "score"
    criteria: Annotated[
        list[Text],
        Strict(),
        Field(min_length=1, max_length=MAX_OPTIONS),
        BeforeValidator(lambda value: list(value) if isinstance(value, tuple) else value),
    ]

    @property
    def labels(self) -> tuple[str, ...]:
        """The zero-based levels as text: "0", "1", ..."""
        return tuple(str(level) for level in range(len(self.criteria)))

    @property
    def descriptions(self) -> tuple[str | None, ...]:
        """The description of each level."""
        return tuple(self.criteria)


Question = Choice | Noul | Score
"""Any question; in a file its `type` tells which."""

_TYPES = ("choice", "noul", "score")
_KNOWN = ", ".join(quoted(name) for name in _TYPES)


def _without_tags(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    # pydantic names the chosen type as a part of the place, where the file has no such level.
    try:
        return handler(value)
    except ValidationError as error:
        raise failure(
            "questions",
            [((*loc[:1], *loc[2:]) if loc[1:2] and loc[1] in _TYPES else loc, text) for loc, text in explained(error)],
        ) from None


def _known_type(value: Any) -> Any:
    # Before pydantic chooses by type, since its own errors do not point at the type.
    if isinstance(value, Mapping):
        if "type" not in value:
            raise failure("question", [(("type",), f"is missing: add one of {_KNOWN}")])
        if value["type"] not in _TYPES:
            raise failure("question", [(("type",), f"must be one of {_KNOWN}, not {shown(value['type'])}")])
    return value


Questions = Annotated[
    dict[Name, Annotated[Question, Field(discriminator="type"), BeforeValidator(_known_type)]],
    Field(min_length=1),
    WrapValidator(_without_tags),
]
"""At least one question by id, in order."""
