"""What a first decision costs in a fresh process, with the compile caches empty and with those it left."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.workload import SizedRequest

TIMES = ("import_ms", "load_ms", "first_ms", "second_ms")
"""Start of the process to the engine imported, loading the model, the first decision, the second one."""

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_SECONDS = 600
_LAST_LINES = 5

# Takes the task and the cache folder, returns what the process tells.
Spawn = Callable[[Mapping[str, Any], Path], dict[str, float]]


def cold_times(task: Mapping[str, Any], request: SizedRequest, processes: int) -> dict[str, list[dict[str, float]]]:
    """TIMES of each of `processes` fresh processes with `empty` caches, and of another each with those `left` by it.

    task: what `cold_process` takes besides the request. Raises JevifyError when a process fails.
    """
    whole = {**task, "context": request.context, "questions": request.questions}
    found: dict[str, list[dict[str, float]]] = {"empty": [], "left": []}
    for _ in range(processes):
        with tempfile.TemporaryDirectory(prefix="jevify-cold-") as folder:
            for times in found.values():
                times.append(spawn(whole, Path(folder)))
    return found


def spawn(task: Mapping[str, Any], caches: Path) -> dict[str, float]:
    """Run `cold_process` on `task` with its compile caches under `caches`. Raises JevifyError when it fails."""
    surroundings = {**os.environ, **{name: str(caches / name.lower()) for name in CACHES}}
    command = [sys.executable, "-m", "jevify.evidence.cold_process"]
    text = json.dumps({**task, "started": time.time()})
    try:
        done = subprocess.run(command, input=text, env=surroundings, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise JevifyError(f"a fresh process took more than {_SECONDS} s") from None
    if done.returncode:
        told = " / ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise JevifyError(f"a fresh process ended with {done.returncode}: {told}")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times
