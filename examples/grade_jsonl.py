"""Grade a model on labelled rows: accuracy by question type, with its interval, and the mean latency.

python examples/grade_jsonl.py benchmarks/data/sample.jsonl

A row is {"context": ..., "questions": {...}, "expected_labels": {id: label}}, as `jevify --input` reads it.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter

from jevify.decide.request import Combined
from jevify.engine import DecisionEngine
from jevify.errors import InputError, JevifyError
from jevify.models.catalog import DEFAULT_MODEL


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927): honest for few rows and near 0 and 1."""
    z = 1.959964
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / total / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the grades; rows that cannot be graded go to stderr. Returns 2 when none can."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", help="a JSONL file, UTF-8")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name, a folder or a hub id")
    args = parser.parse_args(argv)

    outcomes: dict[str, list[bool]] = defaultdict(list)
    seconds: list[float] = []
    try:
        with open(args.rows, "rb") as file:
            lines = file.read().splitlines()
        engine = DecisionEngine.from_pretrained(args.model)
        engine.warmup()
    except OSError as error:
        print(f"{args.rows}: {error.strerror}", file=sys.stderr)
        return 2
    except JevifyError as error:
        print(error, file=sys.stderr)
        return error.exit_code

    for number, line in enumerate(lines, start=1):
        try:
            row = Combined.parse(line.decode("utf-8"), f"line {number}")
            if not row.expected_labels:
                raise InputError(f"line {number}: has no expected_labels")
            context, workflow = row.resolve()
            began = perf_counter()
            answers = engine.decide(context, workflow)["answers"]
            seconds.append(perf_counter() - began)
        except (InputError, UnicodeDecodeError) as error:
            print(f"set aside: line {number}: {str(error).removeprefix(f'line {number}: ')}", file=sys.stderr)
            continue
        for name, expected in row.expected_labels.items():
            shares = answers[name]["probabilities"]
            outcomes[answers[name]["type"]].append(max(shares, key=shares.__getitem__) == expected)

    if not seconds:
        print(f"{args.rows}: no row can be graded", file=sys.stderr)
        return 2
    for kind, right in sorted(outcomes.items()):
        low, high = wilson(sum(right), len(right))
        print(f"{kind:<6} {sum(right) / len(right):.3f} [{low:.3f}, {high:.3f}] of {len(right)}")
    print(f"{len(seconds)} rows, {1000 * sum(seconds) / len(seconds):.0f} ms a row")
    return 0


if __name__ == "__main__":
    sys.exit(main())
