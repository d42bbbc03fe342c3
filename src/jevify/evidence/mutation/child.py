"""Runs the tiny suite in this process, with a fault planted if one is named, until a group of checks rejects it.

python -m jevify.evidence.mutation.child GATES [FAULT]

A process of its own for each fault: modules keep what they import, Triton keeps what it made of a kernel, and a thread
pool that was forked hangs.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from jevify.evidence.mutation.fault import Fault, named_faults


class _Planted(MetaPathFinder):
    """Loads one module from another file: Triton and tracebacks read the source where it says it is."""

    def __init__(self, module: str, path: Path) -> None:
        self._module, self._path = module, path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(fullname, self._path) if fullname == self._module else None


def plant(fault: Fault, folder: Path) -> None:
    """Let the module of `fault` be imported with the fault in it; it must not have been imported yet."""
    if fault.module in sys.modules:
        raise RuntimeError(f"{fault.module} was imported before its fault was planted")
    path = folder / f"{fault.module.rpartition('.')[2]}.py"
    path.write_text(fault.source(), encoding="utf-8")
    sys.meta_path.insert(0, _Planted(fault.module, path))


def main(gates: str, *names: str) -> None:
    """Print {"outcomes": [...]}, as `Outcome.data` gives them, on the last line."""
    with tempfile.TemporaryDirectory() as folder:
        for fault in named_faults(names):
            plant(fault, Path(folder))
        # From here on the faulty module may be imported, and the interpreter must have been chosen.
        import torch

        if not torch.cuda.is_available():
            os.environ["TRITON_INTERPRET"] = "1"
        from transformers.utils import logging

        logging.set_verbosity_error()
        outcomes = _outcomes(gates)
    print(json.dumps({"outcomes": outcomes}, allow_nan=False))


def _outcomes(gates: str) -> list[dict[str, object]]:
    try:
        from jevify.evidence.gates import load_gates
        from jevify.evidence.validate.interpreter import repair
        from jevify.evidence.validate.suite import run_until_rejected

        repair()
        return [outcome.data() for outcome in run_until_rejected(load_gates(Path(gates)))]
    except Exception as error:
        # A fault may keep the very modules from importing, which is as good as a check.
        return [{"name": "import", "passed": False, "value": None, "error": f"{type(error).__name__}: {error}"}]


if __name__ == "__main__":
    main(*sys.argv[1:])
