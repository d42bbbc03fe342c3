"""Whole decisions of an engine over a tiny model against probabilities worked out from transformers' logits."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from jevify.decide.answers import top_label
from jevify.decide.drift import Drift
from jevify.decide.near_ties import lead, settle_ties, verdict
from jevify.decide.plan import Branch, RequestPlan
from jevify.engine import DecisionEngine
from jevify.evidence.validate import tiny
from jevify.evidence.validate.cases import model_of
from jevify.evidence.validate.check import Check

CONTEXT = "The parcel arrived two days late and the box was torn."
QUESTIONS: Mapping[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical", "refund"]},
    "late": {"type": "noul", "instructions": "Is it late?"},
    "only": {"type": "choice", "instructions": "What is it?", "criteria": ["parcel"]},
    "level": {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad", "awful"]},
    "letter": {"type": "choice", "instructions": "Which?", "criteria": [f"label {number}" for number in range(26)]},
}
SHORT: Mapping[str, Any] = {"late": {"type": "noul", "instructions": "Is it late?"}}
NESTED: Mapping[str, Any] = {
    "word": {"type": "choice", "instructions": "Which word?", "criteria": ["organ", "organism", "refund"]},
    "late": {"type": "noul", "instructions": "Is it late?"},
    "even": {"type": "choice", "instructions": "Which one?", "criteria": ["yes please", "no refund"]},
}


def engine_over(model: Any, **settings: Any) -> DecisionEngine:
    """An engine with the tiny tokenizer."""
    return DecisionEngine(model, tiny.tokenizer(), name="tiny", **settings)


@torch.no_grad()
def by_transformers(
    engine: DecisionEngine, model: Any, context: Any, questions: Mapping[str, Any], temperature: float = 1.0
) -> dict[str, Any]:
    """A decision of one forward a label, from texts alone: the chat template's rendering, continued by each answer.

    Only the prompts are taken from the engine. Labels of which one begins another end with the token that ends a turn.
    """
    tokenizer = tiny.tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    compiled = engine.prepare(context, questions)
    answers = {}
    for (name, question), branch in zip(compiled.questions.items(), compiled.plan.branches, strict=True):
        prompt = tokenizer.decode(compiled.plan.prefix + branch.tokens, skip_special_tokens=False)
        texts = _answer_texts(engine, question)
        nested = any(one != other and other.startswith(one) for one in texts for other in texts)
        ids = [tokenizer.encode(prompt + text, add_special_tokens=False) for text in texts]
        ids = [[*tokens, end] if nested else tokens for tokens in ids]
        start = len(tokenizer.encode(prompt, add_special_tokens=False))
        scores = [_likelihood(model, tokens, start) / temperature for tokens in ids]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        shares = [weight / math.fsum(weights) for weight in weights]
        answers[name] = {"probabilities": dict(zip(_labels(question), shares, strict=True))}
    return {"answers": answers}


def _answer_texts(engine: DecisionEngine, question: Any) -> Sequence[str]:
    if question.type == "noul":
        return ("false", "true")
    if engine.settings.answer_encoding == "labels":
        return tuple(question.labels)
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(question.labels)]


def _labels(question: Any) -> Sequence[str]:
    return ("no", "yes") if question.type == "noul" else tuple(question.labels)


def _likelihood(model: Any, tokens: Sequence[int], start: int) -> float:
    logs = model(torch.tensor([tokens], device=model.device)).logits[0].double().log_softmax(-1)
    return sum(logs[place - 1, tokens[place]].item() for place in range(start, len(tokens)))


def probability_distance(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Largest |dp| of any label. Raises ValueError when questions or labels differ."""
    gaps = [0.0]
    for name, answer in wanted["answers"].items():
        ours, theirs = found["answers"][name]["probabilities"], answer["probabilities"]
        if list(ours) != list(theirs) or len(found["answers"]) != len(wanted["answers"]):
            raise ValueError(f"{name}: the labels are {list(ours)}, not {list(theirs)}")
        gaps += [abs(ours[label] - theirs[label]) for label in theirs]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps)


def probabilities(executor: str, encoding: str, temperature: float) -> float:
    """Largest |dp| of every kind of question."""
    model = model_of("qwen2")
    questions = QUESTIONS if encoding == "letters" else NESTED
    engine = engine_over(
        model, executor=executor, answer_encoding=encoding, temperature=temperature, max_label_tokens=64
    )
    wanted = by_transformers(engine, model, CONTEXT, questions, temperature)
    return probability_distance(engine.decide(CONTEXT, questions), wanted)


def order(executor: str) -> float:
    """Largest |dp| between requests decided together and alone."""
    engine = engine_over(model_of("qwen3"), executor=executor)
    requests = [(CONTEXT, QUESTIONS), ("Hello world.", SHORT), ("Refund!", QUESTIONS), ("Money back.", SHORT)]
    together = engine.decide_many(requests)
    return max(
        probability_distance(found, engine.decide(*request)) for found, request in zip(together, requests, strict=True)
    )


def typed() -> float:
    """Typed answers that do not follow from their probabilities: the label, P(yes), the mean level."""
    found = engine_over(model_of("llama")).decide(CONTEXT, QUESTIONS)["answers"]
    level = found["level"]["probabilities"]
    mean = sum(int(label) * share for label, share in level.items())
    return (
        (found["team"]["choice"] != top_label(found["team"]["probabilities"]))
        + (found["late"]["noul"] != found["late"]["probabilities"]["yes"])
        + (abs(found["level"]["score"] - mean) > 1e-9)
        + (found["only"]["probabilities"] != {"parcel": 1.0})
    )


def near_ties() -> float:
    """Leads on the wrong side of twice the drift, and metadata that says otherwise."""
    wrong = 0
    for scores, near in (([1.0, 1.05, 0.0], True), ([0.0, 5.0], False), ([1.0, 1.1], True), ([0.3], False)):
        wrong += verdict(scores, Drift(0.1)).near_tie is not near
    wrong += verdict([1.0, 2.0], None).near_tie is not None
    wrong += lead([0.5, 3.0, 2.0]) != 1.0
    return wrong


def settled() -> float:
    """Ties that `settle_ties` did not replace by the canonical scores, and other questions that it touched."""
    plan = RequestPlan((1,), tuple(Branch((index,), ((1,), (2,))) for index in range(3)))
    scores = [[[0.0, 0.05], [0.0, 3.0], [0.02, 0.0]]]
    verdicts = [[verdict(options, Drift(0.1)) for options in scores[0]]]
    asked: list[RequestPlan] = []

    def canonical(plans: Sequence[RequestPlan]) -> list[list[list[float]]]:
        asked.extend(plans)
        return [[[7.0, 8.0], [9.0, 6.0]]]

    settle_ties([plan], scores, verdicts, canonical)
    return (
        (scores != [[[7.0, 8.0], [0.0, 3.0], [9.0, 6.0]]])
        + ([one.settled for one in verdicts[0]] != [True, False, True])
        + (asked != [RequestPlan((1,), (plan.branches[0], plan.branches[2]))])
    )


CHECKS = (
    *(
        Check(f"answers.{encoding}.{executor}", "probability", partial(probabilities, executor, encoding, 1.0))
        for encoding in ("letters", "labels")
        for executor in ("packed", "forked", "independent")
    ),
    Check("answers.temperature", "probability", partial(probabilities, "packed", "letters", 2.5)),
    *(Check(f"answers.order.{executor}", "isolation", partial(order, executor)) for executor in ("packed", "forked")),
    Check("answers.typed", "violations", typed),
    Check("near-ties.flagged", "violations", near_ties),
    Check("near-ties.settled", "violations", settled),
)
