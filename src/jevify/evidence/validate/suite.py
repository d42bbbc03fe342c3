"""All checks that need no model of the user's: tiny random models, single operations, tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from jevify.accel.ops.triton_runtime import failure
from jevify.evidence.gates import Gates
from jevify.evidence.validate.cases import DEVICE
from jevify.evidence.validate.check import Check, Outcome, Progress, run_checks

GROUPS = ("text", "operations", "attention", "states", "scores", "answers", "weights", "graphs")
"""Modules of checks, from tokens and single operations to whole decisions and what outlives them."""


def checks_of(group: str) -> tuple[Check, ...]:
    """The checks of one group."""
    checks: tuple[Check, ...] = import_module(f"jevify.evidence.validate.{group}").CHECKS
    return checks


def run_tiny(gates: Gates, progress: Progress = lambda done, total, name: None) -> list[Outcome]:
    """Run all of them in this process. Kernels run on the GPU, or in Triton's interpreter if that was chosen."""
    with _one_thread():
        return run_checks([check for group in GROUPS for check in checks_of(group)], gates.parity, progress=progress)


def run_until_rejected(gates: Gates) -> list[Outcome]:
    """Run group after group, and no further than the first in which a check fails."""
    outcomes: list[Outcome] = []
    with _one_thread():
        for group in GROUPS:
            found = run_checks(checks_of(group), gates.parity)
            outcomes += found
            if not all(outcome.passed for outcome in found):
                break
    return outcomes


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small only make threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def kernels_missing() -> str | None:
    """Why the checks of kernels cannot run in this process; None when they can."""
    return failure(str(DEVICE))
