"""An engine without a model for bulk runs, and `jevify` upon it: `python fake_bulk.py PAUSE_MS batch ...`."""

import sys
import time
from typing import Any

from jevify.errors import InputError


class FakeBulk:
    """Says yes to every question with probability marker / 1000, where the context is "MARKER words ...".

    A context with "long" is refused, one with "break" fails whoever it is decided with. A request costs as many tokens
    as its context has words. `groups` holds the markers that were decided together.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.groups: list[list[int]] = []
        self.warm = 0
        self.changes: dict[str, Any] = {}

    def identity(self) -> dict[str, Any]:
        return {"model": "fake", "revision": None, "weights": "w", "dtype": "float32", "settings": {}, **self.changes}

    def warmup(self, **options: Any) -> None:
        self.warm += 1

    def measure(self, context: Any, questions: Any) -> tuple[int, list[int]]:
        if "long" in context:
            raise InputError("$.questions.late: the full question is 9 tokens, and the limit is 8")
        return len(context.split()) - 1, [len(context.split())]

    def decide_many(self, requests: Any, *, mode: str) -> list[dict[str, Any]]:
        markers = [int(context.split()[0]) for context, _ in requests]
        self.groups.append(markers)
        time.sleep(self.pause)
        if any("break" in context for context, _ in requests):
            raise RuntimeError("out of luck")
        return [_decision(marker, workflow) for marker, (_, workflow) in zip(markers, requests, strict=True)]


def _decision(marker: int, workflow: Any) -> dict[str, Any]:
    yes = marker / 1000
    answer = {"type": "noul", "noul": yes, "probabilities": {"no": 1 - yes, "yes": yes}}
    judged = {"lead": abs(2 * yes - 1), "near_tie": marker == 500, "settled": False}
    return {
        "answers": dict.fromkeys(workflow.questions, answer),
        "metadata": {"questions": dict.fromkeys(workflow.questions, judged)},
    }


if __name__ == "__main__":
    from jevify.cli import batch
    from jevify.cli.main import main

    fake = FakeBulk(float(sys.argv[1]) / 1000)
    batch.load = lambda args, settings: fake
    sys.exit(main(sys.argv[2:]))
