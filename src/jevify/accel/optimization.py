"""The record every optimization is described by."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Optimization:
    """One optimization as its room exports it.

    family: model, cache, decode, transfer or present. setting: the engine argument that turns it on. missing: returns
    why it cannot run on a device type ("cpu" or "cuda"), or None. falls_back_to: what runs instead. default: whether it
    is on when nothing is said. scenario: the benchmark that measures it, a file of benchmarks/ without its ending.
    """

    name: str
    family: str
    setting: str
    missing: Callable[[str], str | None]
    falls_back_to: str
    default: bool
    scenario: str
