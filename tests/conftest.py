"""Without a GPU, Triton kernels run in Triton's interpreter: it has to be chosen before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    from triton.runtime import interpreter
except ImportError:
    interpreter = None


def _round_to_nearest(convert):
    """The interpreter truncates fp32 to bf16 where compiled kernels round to nearest even; make it round."""

    def converted(values, source, target, mode):
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(values, source, target, mode)
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")

    return converted


if interpreter is not None:
    interpreter._convert_float = _round_to_nearest(interpreter._convert_float)


@pytest.fixture(autouse=True)
def measured_folder(tmp_path_factory, monkeypatch):
    """Measured drift goes to a folder of the test's own, not to the user's cache."""
    folder = tmp_path_factory.mktemp("measured")
    # Imported late: the command line is tested for what it does not import.
    from jevify.decide import drift_store

    monkeypatch.setattr(drift_store, "folder", lambda: folder)
    return folder
