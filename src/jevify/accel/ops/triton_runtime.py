"""Triton when it is there: the names kernels are written with, and why a kernel cannot run when it cannot.

Imports no torch, so that settings can be checked before anything heavy loads.
"""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ImportError:
    triton = tl = libdevice = None

__all__ = ["INTERPRETED", "build_errors", "failure", "jit", "libdevice", "missing_tools", "tl", "triton", "unavailable"]


def jit(*varying: str) -> Callable[[Callable[..., None]], Any]:
    """Make a Triton kernel of a function; without Triton it stays a function that nobody may call.

    varying: integer arguments whose value changes from call to call. Triton compiles a kernel again for integers that
    are 1 or a multiple of 16, which must not happen in the middle of serving or of a graph capture.
    """
    if triton is None:
        return lambda function: function
    return triton.jit(do_not_specialize=varying)


@jit()
def _probe_kernel(cell) -> None:  # type: ignore[no-untyped-def]
    tl.store(cell, 1.0)


# Triton decides when a kernel is made whether its interpreter runs it (TRITON_INTERPRET=1), and so for all kernels.
INTERPRETED = triton is not None and not isinstance(_probe_kernel, triton.runtime.JITFunction)


def unavailable(device_type: str) -> str | None:
    """Why no kernel can run on a "cpu" or "cuda" device, as far as can be told without touching it; else None."""
    if triton is None:
        return "Triton is not installed; pip install 'jevify[fusion]' (Linux only)"
    if device_type != "cuda" and not INTERPRETED:
        return "kernels need a CUDA device; on a CPU only Triton's slow interpreter (TRITON_INTERPRET=1) runs them"
    return None


@cache
def failure(device: str) -> str | None:
    """Why no kernel runs on `device`, found by running a small one; None when they run. Asked once a process."""
    import torch

    place = torch.device(device)
    if reason := unavailable(place.type):
        return reason
    cell = torch.zeros(1, device=place)
    try:
        if place.type == "cuda":
            with torch.cuda.device(place):
                _probe_kernel[(1,)](cell)
        else:
            _probe_kernel[(1,)](cell)
        ran = cell.item() == 1
    except Exception as error:
        missing = "; ".join(missing_tools()) or "a C compiler and Python.h are there"
        return f"Triton cannot build or launch a kernel on {device} ({missing}): {type(error).__name__}: {error}"
    return None if ran else f"a kernel launched on {device} wrote nothing"


def build_errors() -> tuple[type[Exception], ...]:
    """What Triton raises for a kernel that it cannot compile or that needs more than the device has."""
    return () if triton is None else (triton.TritonError, subprocess.CalledProcessError)


def missing_tools() -> list[str]:
    """What Triton needs to build its launch helper and this machine lacks, each with the remedy."""
    found = []
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang", "cc"]
    if not any(shutil.which(name) for name in compilers):
        found.append(f"no C compiler ({', '.join(compilers)}); install gcc")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        found.append(f"no Python headers ({header}); install python3-dev")
    return found
