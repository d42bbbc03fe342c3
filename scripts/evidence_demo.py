"""Profile, measure, validate and report one optimization, on a CPU with the embedded model.

python scripts/evidence_demo.py outputs/evidence-demo

Each step is a command that anyone can type; what it stores goes to the folder.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jevify.cli.main import main as jevify

SCENARIO = "demo-cpu"
ENGINE = ("--model", "smollm2-135m", "--device", "cpu", "--dtype", "float32", "--executor", "packed")
SIZE = ("--prefix-tokens", "120", "--question-tokens", "60", "--questions", "4", "--repeats", "5")


def commands(folder: Path) -> dict[str, list[str]]:
    """The command of every step, in their order."""
    profile, bench, validation, page = (
        str(folder / name) for name in ("profile.json", "bench.json", "validation.json", "report.html")
    )
    return {
        "profile": ["profile", "decide", *ENGINE, *SIZE, "--kernels", "--output", profile, "--force"],
        "bench": ["bench", SCENARIO, "--output", bench, "--force"],
        "validate": ["validate", "decide", *ENGINE, "--rows", "12", "--output", validation, "--force"],
        "report": ["report", profile, bench, "--html", page],
    }


def run(folder: Path, command: Callable[[Sequence[str]], int] = jevify) -> int:
    """Run the steps and return the exit code: that of the first step that fails.

    A failed validation is a verdict: the report is drawn all the same, and the code is that of the validation.
    `command` runs one command line.
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
    verdict = step("validate")
    if code := step("report"):
        return code
    print(f"\n{time.monotonic() - begin:.0f} s; open {(folder / 'report.html').resolve()}")
    return verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    sys.exit(run(parser.parse_args().folder))
