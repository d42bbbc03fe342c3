"""Carry one optimization from a profile to a verdict and a report, on a CPU with the embedded model.

python scripts/evidence_demo.py outputs/evidence-demo

Each step is a command that anyone can type; what it stores goes to the folder, the ledger too.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jevify.cli.main import main as jevify

SCENARIO = "demo-cpu"
OPTIMIZATION = "packed"
ENGINE = ("--model", "smollm2-135m", "--device", "cpu", "--dtype", "float32", "--executor", "packed")
SIZE = ("--prefix-tokens", "120", "--question-tokens", "60", "--questions", "4", "--repeats", "5")


def commands(folder: Path) -> dict[str, list[str]]:
    """The command of every step, in their order; `reject` takes the place of a `promote` that is refused."""
    profile, bench, validation, ledger, page = (
        str(folder / name) for name in ("profile.json", "bench.json", "validation.json", "ledger.jsonl", "report.html")
    )
    evidence = ["--profile", profile, "--bench", bench, "--validation", validation, "--ledger", ledger]
    return {
        "profile": ["profile", "decide", *ENGINE, *SIZE, "--kernels", "--output", profile, "--force"],
        "bench": ["bench", SCENARIO, "--output", bench, "--force"],
        "validate": ["validate", "decide", *ENGINE, "--rows", "12", "--output", validation, "--force"],
        "promote": ["ledger", "promote", OPTIMIZATION, *evidence],
        "reject": ["ledger", "reject", OPTIMIZATION, *evidence, "--reason", "promotion was refused"],
        "report": ["report", profile, bench, "--html", page],
    }


def run(folder: Path, command: Callable[[Sequence[str]], int] = jevify) -> int:
    """Run the steps and return the exit code: that of the first step that fails, but for a verdict against.

    A failed validation and a refused promotion are verdicts, which the ledger keeps; `command` runs one command line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = commands(folder)
    begin = time.monotonic()

    def step(name: str) -> int:
        print(f"\n$ jevify {shlex.join(lines[name])}", file=sys.stderr, flush=True)
        return command(lines[name])

    for name in ("profile", "bench"):
        if code := step(name):
            return code
    step("validate")
    if step("promote") and (code := step("reject")):
        return code
    if code := step("report"):
        return code
    print(f"\n{time.monotonic() - begin:.0f} s; open {(folder / 'report.html').resolve()}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    sys.exit(run(parser.parse_args().folder))
