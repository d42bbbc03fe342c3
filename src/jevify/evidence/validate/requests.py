"""Requests that exercise an engine end to end: many branches, label paths, one and many options, long and short."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jevify.evidence.kinds.base import Case
from jevify.evidence.workload import sized_requests

Request = tuple[Any, Mapping[str, Any]]

COMPLAINT = (
    "I was charged twice for the same order, and the second charge has not been returned after nine days. The person "
    "on the phone was polite but could not tell me who decides about it."
)
LOG = " ".join(
    f"Entry {day}: the pump ran for {3 + day % 5} hours, the pressure was {'steady' if day % 3 else 'low'}, and the "
    f"operator {'noted nothing' if day % 2 else 'heard a noise from the valve and left it closed'}."
    for day in range(1, 9)
)
ORDER = {"order": 17, "notes": ["late", "torn box"], "customer": {"since": 2019, "tone": "calm"}}
MIXED: Mapping[str, Any] = {
    "topic": {"type": "choice", "instructions": "What is it about?", "criteria": ["money", "goods", "a machine"]},
    "unhappy": {"type": "noul", "instructions": "Is somebody unhappy?"},
    "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": ["It can wait", "Soon", "At once"]},
    "only": {"type": "choice", "instructions": "What is this?", "criteria": ["a text"]},
    "letter": {
        "type": "choice",
        "instructions": "Which letter does the most important word begin with?",
        "criteria": [f"the letter {chr(code)}" for code in range(ord("a"), ord("z") + 1)],
    },
    "team": {
        "type": "choice",
        "instructions": "Which team should answer?",
        "criteria": {"billing": "charges and refunds", "technical": "devices", "shipping": "parcels", "legal": None},
    },
}
LABELS: Mapping[str, Any] = {
    "word": {"type": "choice", "instructions": "Which word fits?", "criteria": ["organ", "organism", "organization"]},
    "action": {
        "type": "choice",
        "instructions": "What should happen next?",
        "criteria": ["refund the customer", "call the customer back", "send a technician", "do nothing for now"],
    },
    "formal": {"type": "noul", "instructions": "Is the text formal?"},
}
SHORT: Mapping[str, Any] = {"unhappy": MIXED["unhappy"]}


@dataclass(frozen=True)
class Batch:
    """Requests to decide in one call (together) or one after another, on the engine with `settings` changed.

    provable: whether the engine's counters must show that graphs and kernels ran.
    """

    name: str
    requests: tuple[Request, ...]
    together: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    provable: bool = True


def batches(engine: Any, seed: int = 17) -> list[Batch]:
    """The whole set for an engine of any executor."""
    executor = engine.settings.executor
    many = {f"{name} {index}": question for index in range(2) for name, question in MIXED.items() if name != "letter"}
    small: dict[str, Any] = {"packed": {"token_budget": 96}, "forked": {"branch_batch_size": 2}}.get(executor, {})
    same = sized_requests(Case(60, 70, 3), engine.measure, number=3, seed=seed)
    return [
        Batch("every kind of question", ((COMPLAINT, MIXED),)),
        Batch("many branches", ((COMPLAINT, many),)),
        Batch("label paths", ((COMPLAINT, LABELS), (ORDER, LABELS)), settings={"answer_encoding": "labels"}),
        Batch("a lone question", (("Late.", SHORT),)),
        Batch("long and short together", ((LOG, LABELS), ("Late.", SHORT), (ORDER, MIXED))),
        Batch("one shape, other contents", tuple((one.context, one.questions) for one in same), together=False),
        # What takes several passes runs without graphs, which strict would refuse.
        Batch(
            "several passes",
            ((COMPLAINT, MIXED), (ORDER, LABELS)),
            settings={**small, "strict": False},
            provable=False,
        ),
    ]
