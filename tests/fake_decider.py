"""A decider without a model, and the command line upon it: `python fake_decider.py FLAGS`."""

import sys
from typing import Any

from jevify.decide.decision import UNCALIBRATED
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

CHOICE = (0.1, 0.7, 0.2)


def answer_of(question: Any) -> dict[str, Any]:
    """A choice puts .7 on its second label, a noul says yes by .75, a score puts .5, .25, .25 on its levels."""
    if question.type == "choice":
        shares = dict(zip(question.labels, CHOICE, strict=True))
        return {"type": "choice", "choice": question.labels[1], "confidence": 0.55, "probabilities": shares}
    if question.type == "noul":
        return {"type": "noul", "noul": 0.75, "probabilities": {"no": 0.25, "yes": 0.75}}
    shares = {"0": 0.5, "1": 0.25, "2": 0.25}
    legend = dict(zip(question.labels, question.criteria, strict=True))
    return {"type": "score", "score": 0.75, "legend": legend, "probabilities": shares, "confidence": 0.1}


class FakeDecider:
    """Keeps what it was asked in `log`; a context of "refuse" or "break" fails."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.loaded: list[tuple[str, dict[str, Any]]] = []

    def load(self, model: str, **options: Any) -> "FakeDecider":
        self.loaded.append((model, options))
        return self

    def warmup(self, questions: Workflow | None = None) -> None:
        self.log.append(("warmup", questions))
        print("[warm]", file=sys.stderr)

    def decide(self, context: Any, questions: Workflow, *, mode: str = "parallel") -> dict[str, Any]:
        self.log.append((context, questions, mode))
        if context == "refuse":
            raise InputError("too long: shorten it")
        if context == "break":
            raise RuntimeError("out of luck")
        return {
            "model": "fake",
            "answers": {name: answer_of(question) for name, question in questions.questions.items()},
            "probability_status": UNCALIBRATED,
            "metadata": {
                "mode": mode,
                "executor": "forked",
                "device": "cpu",
                "dtype": "float32",
                "forward_calls": 2,
                "shared_prefix_tokens": 41,
                "stages_ms": {"prepare": 1.2, "forward": 30.0, "scoring": 2.0, "total": 33.4},
                "optimizations": {"fallbacks": {}, "counters": {"last_copy_fallback": None}},
                "context": context,
                "asked": {name: question.instructions for name, question in questions.questions.items()},
            },
        }


if __name__ == "__main__":
    from jevify.cli import decide
    from jevify.cli.main import main

    decide.load_engine = FakeDecider().load  # type: ignore[assignment]
    sys.exit(main())
