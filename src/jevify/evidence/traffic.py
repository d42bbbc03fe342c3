"""Requests as they come: contexts of any length about a few fixed sets of questions."""

import random
from dataclasses import dataclass

from jevify.evidence.words import WORDS
from jevify.evidence.workload import Questions, distinct_labels

Request = tuple[str, Questions]

_INSTRUCTION_WORDS = (8, 50)


@dataclass(frozen=True)
class Traffic:
    """Least and most of each: words of a context (about as many tokens), and questions of the `rubrics` sets."""

    words: tuple[int, int]
    questions: tuple[int, int]
    rubrics: int


def requests_of(traffic: Traffic, *, number: int, seed: int, sample: str) -> list[Request]:
    """`number` requests: a length drawn evenly, one of the sets of questions, words without sense.

    The sets depend on `seed` alone, with numbers of questions spread evenly from the least to the most; `sample` names
    an independent draw of contexts. The same arguments give the same requests.
    """
    rubrics = _rubrics(traffic, random.Random(f"{seed}/rubrics"))
    draw = random.Random(f"{seed}/{sample}")
    return [
        (" ".join(draw.choices(WORDS, k=draw.randint(*traffic.words))), draw.choice(rubrics)) for _ in range(number)
    ]


def _rubrics(traffic: Traffic, draw: random.Random) -> list[Questions]:
    low, high = traffic.questions
    steps = max(1, traffic.rubrics - 1)
    return [_rubric(low + round((high - low) * index / steps), draw) for index in range(traffic.rubrics)]


def _rubric(questions: int, draw: random.Random) -> Questions:
    made: Questions = {}
    for index in range(questions):
        instructions = " ".join(draw.choices(WORDS, k=draw.randint(*_INSTRUCTION_WORDS)))
        made[f"question_{index + 1}"] = (
            {"type": "noul", "instructions": instructions}
            if index % 2
            else {"type": "choice", "instructions": instructions, "criteria": distinct_labels(draw)}
        )
    return made
