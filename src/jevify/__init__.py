"""Typed decisions from dense language models in one forward pass."""

from jevify.decide.questions import Choice, Noul, Score
from jevify.decide.workflow import Workflow

__version__ = "0.1.0"
__all__ = ["Choice", "Noul", "Score", "Workflow", "__version__"]
