"""The kinds of benchmark scenario, a folder each: `scenario` (the data), `run` (the measuring), `table` (its print)."""

from importlib import import_module
from typing import Any, Literal

KINDS = ("decide", "varied", "throughput", "kernels", "crossover", "profile")


def part(kind: str, name: Literal["scenario", "run", "table"]) -> Any:
    """A module of one of the KINDS, imported when it is needed: only running needs torch."""
    return import_module(f"{__name__}.{kind}.{name}")
