"""Where and with what a measurement was taken."""

import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import jevify

_PACKAGES = ("torch", "transformers", "triton", "tokenizers", "numpy")
_SOURCE = Path(jevify.__file__).parent


def environment(command: str) -> dict[str, Any]:
    """What a reader needs to repeat a run, as JSON data.

    `command` is the line that repeats it. A package that is not installed and a commit that cannot be told
    are None; `commit_unknown` then says why. `dirty` covers the whole working tree.
    """
    return {
        "command": command,
        **_commit(),
        "source_sha256": _source_digest(),
        "jevify": _version("jevify") or jevify.__version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "logical_cpus": os.cpu_count(),
        "load_average": _load_average(),
        **_torch(),
    }


def _torch() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The processor's name, read where the system keeps it; the architecture when it keeps none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    if sys.platform == "darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if name:
            return name
    return platform.processor() or platform.machine()


def _load_average() -> float | None:
    """Runnable processes over the last minute, ours included, where the system counts them."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _commit() -> dict[str, Any]:
    """The commit of the source that runs, which need not be that of the current directory."""
    # An installed copy may lie inside some other repository, whose commit says nothing about it.
    if _git("ls-files", "--error-unmatch", "errors.py") is None:
        return {
            "commit": None,
            "dirty": None,
            "commit_unknown": "the running source is not in a git repository",
        }
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "commit_unknown": "the repository has no commit"}
    return {
        "commit": commit,
        "dirty": bool(_git("status", "--porcelain", "--", ":/")),
        "commit_unknown": None,
    }


def _git(*arguments: str) -> str | None:
    return _output("git", "-C", str(_SOURCE), *arguments)


def _output(*command: str) -> str | None:
    """What a command prints, or None when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _source_digest() -> str:
    """SHA-256 over the package's Python files: identifies the source where there is no repository."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCE.rglob("*.py"), key=lambda path: path.relative_to(_SOURCE).as_posix()):
        digest.update(path.relative_to(_SOURCE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
