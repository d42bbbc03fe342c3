"""Typed decisions from dense language models in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jevify.decide.questions import Choice, Noul, Score
    from jevify.decide.workflow import Workflow

__version__ = "0.1.0"
__all__ = ["Choice", "Noul", "Score", "Workflow", "__version__"]

_HOMES = {
    "Choice": "jevify.decide.questions",
    "Noul": "jevify.decide.questions",
    "Score": "jevify.decide.questions",
    "Workflow": "jevify.decide.workflow",
}


def __getattr__(name: str) -> Any:
    # On first use: the command must be able to catch an interrupt before anything slow is imported.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
