"""Peak memory of a phase of this process."""

import ctypes
import gc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# Resets the peak resident set to the present one: proc(5), clear_refs.
_RESET_PEAK = "5"


@dataclass(frozen=True)
class PeakMemory:
    """Bytes in use at the highest point of a phase.

    `resident_start` is what the process held as the phase began (weights included), `resident_peak` the most
    it held during it. `cuda_peak` counts the bytes of live tensors of PyTorch's CUDA allocator. A number
    that this machine cannot give is None, and `unavailable` says why.
    """

    resident_start: int | None
    resident_peak: int | None
    cuda_peak: int | None
    unavailable: str | None


def peak_memory(phase: Callable[[], object], device: str = "cpu") -> PeakMemory:
    """Run `phase` once and return its peaks; CUDA is read when `device` is a CUDA device.

    Frees what earlier phases left to the allocator first, so that the order of phases does not show.
    Whatever `phase` raises passes through.
    """
    _return_free_memory()
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    unavailable = _reset_resident_peak()
    start = None if unavailable else _status_bytes("VmRSS")
    phase()
    peak = None if unavailable else _status_bytes("VmHWM")
    return PeakMemory(start, peak, torch.cuda.max_memory_allocated(device) if cuda else None, unavailable)


def driver_bytes(device: str) -> int | None:
    """Memory of a CUDA device in use by all that run on it, as its driver counts; None for another device."""
    if not device.startswith("cuda"):
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def release(device: str) -> None:
    """Give back what nothing refers to any more, to the system and the driver."""
    _return_free_memory()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _reset_resident_peak() -> str | None:
    """Reset the peak resident set; return why it is not possible here, or None."""
    if not sys.platform.startswith("linux"):
        return f"the peak resident set of a phase cannot be read on {sys.platform}"
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError as error:
        return f"{_CLEAR_REFS} cannot be written: {error.strerror}"
    return None


def _status_bytes(field: str) -> int | None:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _return_free_memory() -> None:
    gc.collect()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
