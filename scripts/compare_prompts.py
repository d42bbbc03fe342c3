"""Accuracy of every prompt format and answer encoding on the labelled sample; the presets rest on it.

python scripts/compare_prompts.py evidence/prompts-smollm2-135m.json [--model M] [--dtype float32]
"""

import argparse
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

from jevify.decide.answers import top_label
from jevify.decide.request import Combined
from jevify.engine import DecisionEngine
from jevify.evidence.environment import environment
from jevify.models.catalog import DEFAULT_MODEL

SAMPLE = Path(__file__).parent.parent / "benchmarks" / "data" / "sample.jsonl"


def accuracy(engine: DecisionEngine, rows: list[Combined]) -> dict[str, list[int]]:
    """By question type: how many answers are right, and how many there are."""
    decisions = engine.decide_many([row.resolve() for row in rows])
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row, decision in zip(rows, decisions, strict=True):
        for name, expected in (row.expected_labels or {}).items():
            answer = decision["answers"][name]
            found[answer["type"]][0] += top_label(answer["probabilities"]) == expected
            found[answer["type"]][1] += 1
    return dict(found)


def main() -> int:
    """Write the accuracies as JSON and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    rows = [Combined.parse(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    engine = DecisionEngine.from_pretrained(args.model, dtype=args.dtype, executor="packed")
    results = []
    for layout, encoding in itertools.product(("delimited", "readable", "json"), ("letters", "labels")):
        right = accuracy(engine.with_settings(prompt_format=layout, answer_encoding=encoding), rows)
        results.append({"prompt_format": layout, "answer_encoding": encoding, "right_of_total": right})
        shares = ", ".join(f"{kind} {hits}/{total}" for kind, (hits, total) in sorted(right.items()))
        print(f"{layout:<10} {encoding:<8} {shares}", flush=True)
    command = f"python scripts/compare_prompts.py {args.output} --model {args.model} --dtype {args.dtype}"
    run = {"model": args.model, "dtype": args.dtype, "environment": environment(command), "results": results}
    args.output.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
