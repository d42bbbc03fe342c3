"""Plants every fault in a process of its own and reports which checks reject it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jevify.errors import JevifyError
from jevify.evidence.environment import environment
from jevify.evidence.gates import MutationGate
from jevify.evidence.mutation.fault import Fault
from jevify.evidence.store import SCHEMA

# Children that run at once; each has one thread.
PROCESSES = 2
# Seconds: a fault may hang what it breaks, which counts as caught.
TIMEOUT = 300

# Called with the children done, those in all, and what the last one found.
Progress = Callable[[int, int, str], None]


def run_mutations(
    faults: Sequence[Fault],
    gate: MutationGate,
    gates: Path,
    *,
    command: str,
    progress: Progress = lambda done, total, text: None,
) -> dict[str, Any]:
    """The clean build and every fault, as JSON data. gates: the file of thresholds that children read.

    Raises InputError when a fault no longer fits the source, JevifyError when a child cannot be run.
    """
    for fault in faults:
        fault.source()
    begin = time.perf_counter()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    rows: dict[str | None, dict[str, Any]] = {}
    with ThreadPoolExecutor(PROCESSES) as pool:
        waiting = {pool.submit(_child, fault, gates): fault for fault in (None, *faults)}
        for future in as_completed(waiting):
            found = waiting[future]
            rows[found.name if found else None] = row = future.result()
            told = f"{found.name}: {_told(row)}" if found else f"clean build: {len(row['failed'])} checks fail"
            progress(len(rows), len(waiting), told)
    clean = rows.pop(None)
    ordered = [
        {"fault": fault.name, "row": fault.row, "says": fault.says, "module": fault.module, **rows[fault.name]}
        for fault in faults
    ]
    caught = sum(bool(row["failed"]) for row in ordered) / len(ordered) if ordered else 1.0
    return {
        "schema": SCHEMA,
        "kind": "mutation",
        "command": command,
        "started": started,
        "seconds": round(time.perf_counter() - begin, 1),
        "environment": environment(command),
        "clean": clean,
        "caught": caught,
        "least_caught": gate.least_caught,
        "faults": ordered,
    }


def accepted(result: dict[str, Any]) -> bool:
    """Whether the clean build passes every check and enough of the faults are rejected."""
    return not result["clean"]["failed"] and result["caught"] >= result["least_caught"]


def _told(row: dict[str, Any]) -> str:
    return f"rejected by {len(row['failed'])} checks, {row['failed'][0]} first" if row["failed"] else "GOT THROUGH"


def _child(fault: Fault | None, gates: Path) -> dict[str, Any]:
    """How many checks ran, and the names of those that failed."""
    words = [sys.executable, "-m", "jevify.evidence.mutation.child", str(gates), *([fault.name] if fault else [])]
    begin = time.perf_counter()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"checks": 0, "failed": ["finished in time"], "seconds": float(TIMEOUT)}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise JevifyError(f"the child of {fault.name if fault else 'the clean build'} failed: {done.stderr[-2_000:]}")
    outcomes = json.loads(lines[-1])["outcomes"]
    return {
        "checks": len(outcomes),
        "failed": [outcome["name"] for outcome in outcomes if not outcome["passed"]],
        "seconds": round(time.perf_counter() - begin, 1),
    }
