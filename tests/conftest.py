"""Without a GPU, Triton kernels run in Triton's interpreter: it has to be chosen before Triton is imported."""

import os
from importlib.util import find_spec

import pytest
import torch

from jevify.evidence.validate import interpreter

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if find_spec("triton") is not None:
    interpreter.repair()


@pytest.fixture(autouse=True)
def measured_folder(tmp_path_factory, monkeypatch):
    """Measured drift goes to a folder of the test's own, not to the user's cache."""
    folder = tmp_path_factory.mktemp("measured")
    # Imported late: the command line is tested for what it does not import.
    from jevify.decide import drift_store

    monkeypatch.setattr(drift_store, "folder", lambda: folder)
    return folder
