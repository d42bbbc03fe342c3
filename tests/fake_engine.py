"""An engine that counts words instead of running a model, on a clock that only it moves."""

import dataclasses
from types import SimpleNamespace
from typing import Any

from jevify.decide.settings import DecideSettings

FRAME = 10  # tokens before the context
_PROBABILITIES = {2: (0.7, 0.3), 3: (0.6, 0.3, 0.1)}
QUESTION_FRAME = 12  # tokens of a question besides its instructions and labels


def word_tokens(text: str) -> int:
    """Words of seven letters or more count as two tokens, so that adding a word may miss a length."""
    return sum(2 if len(word) >= 7 else 1 for word in text.split())


def count_words(context: str, questions: dict[str, dict[str, Any]]) -> tuple[int, list[int]]:
    """Shared prefix tokens and tokens of each full question, by `word_tokens`."""
    prefix = FRAME + word_tokens(context)
    own = [
        QUESTION_FRAME + word_tokens(question["instructions"]) + len(question.get("criteria", ()))
        for question in questions.values()
    ]
    return (prefix if len(questions) > 1 else 0), [prefix + tokens for tokens in own]


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class FakeModel:
    """What the engines share: the clock, a log of (executor, context), and seconds a decision by executor.

    `cleared` holds the executors of the engines that were cleared, in their order.

    `seconds[executor]` holds the times of successive decisions, the last one for all that follow. `meddle`
    may change a decision before it is returned, or raise. `counted` gives more counters of an engine, from its
    executor and the decisions it has made.
    """

    clock: FakeClock
    seconds: dict[str, list[float]]
    log: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    cleared: list[str] = dataclasses.field(default_factory=list)
    meddle: Any = lambda executor, decision, log: None
    counted: Any = lambda executor, decisions: {}


class FakeEngine:
    """The engine's API, as far as the benchmark uses it."""

    # Two layers of 16-value heads: 2 * (64 * 16 * (2 * 4 + 2 * 2) + 3 * 64 * 128) = 73,728 values.
    config = SimpleNamespace(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128
    )

    def __init__(self, model: FakeModel, **settings: Any) -> None:
        self._model = model
        self.settings = DecideSettings(**settings)
        self._decisions = 0

    def with_settings(self, **settings: Any) -> "FakeEngine":
        return FakeEngine(self._model, **settings)

    def clear_optimization_cache(self) -> None:
        self._model.cleared.append(self.settings.executor)

    def measure(self, context: str, questions: dict[str, dict[str, Any]]) -> tuple[int, list[int]]:
        return count_words(context, questions)

    def counters(self) -> dict[str, Any]:
        return {"decisions": self._decisions, **self._model.counted(self.settings.executor, self._decisions)}

    def with_executor(self, build: Any) -> "FakeEngine":
        return self.with_settings(executor=self.settings.executor)

    def oracle(self, context: str, questions: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return self._decision("oracle", context, questions)

    def decide(self, context: str, questions: dict[str, dict[str, Any]]) -> dict[str, Any]:
        executor = self.settings.executor
        times = self._model.seconds[executor]
        self._model.clock.now += times[min(self._decisions, len(times) - 1)]
        self._decisions += 1
        self._model.log.append((executor, context))
        decision = self._decision(executor, context, questions)
        self._model.meddle(executor, decision, self._model.log)
        return decision

    def decide_many(self, requests: list[tuple[str, dict[str, dict[str, Any]]]]) -> list[dict[str, Any]]:
        return [self.decide(context, questions) for context, questions in requests]

    def _decision(self, executor: str, context: str, questions: dict[str, dict[str, Any]]) -> dict[str, Any]:
        shared, tokens = count_words(context, questions)
        batches = -(-len(questions) // self.settings.branch_batch_size)
        calls = {"forked": batches + (shared > 0), "packed": 1}.get(executor, len(questions))
        labels = {name: list(question.get("criteria", ("no", "yes"))) for name, question in questions.items()}
        return {
            "model": "fake",
            "answers": {
                name: {"probabilities": dict(zip(options, _PROBABILITIES[len(options)], strict=True))}
                for name, options in labels.items()
            },
            "metadata": {
                "executor": executor,
                "device": "cpu",
                "dtype": "float32",
                "scoring_dtype": "float32",
                "attention": "sdpa",
                "revision": None,
                "prompt_format": "readable",
                "answer_encoding": "labels",
                "generated_tokens": 0,
                "forward_calls": calls,
                "shared_prefix_tokens": 0 if executor == "independent" else shared,
                "questions": {
                    name: {"tokens": count, "label_tokens": [1] * len(labels[name])}
                    for name, count in zip(questions, tokens, strict=True)
                },
                "stages_ms": {"forward": 2.0, "total": 3.0},
            },
        }
