"""What of a workflow can be tokenized before any context is known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jevify.decide.encodings import QuestionEncoder
from jevify.decide.plan import Branch, RequestPlan, Tokens, common_length, share_prefix
from jevify.decide.questions import Question
from jevify.errors import InputError

# Contexts that end in ways that tokenizers treat apart, and one of each JSON kind.
PROBES: tuple[Any, ...] = (
    "The parcel arrived two days late.",
    {"order": 17, "notes": ["late", "torn"]},
    "it's an open \"quote, an open (bracket, [list, {brace and <tag",
    ["a", {"b": None}],
    "ends in a word",
    "ends in 12345",
    "ends in a space ",
    "ends in newlines\n\n",
    "ends in a tab\t",
    "it ends in the customer's",
    'ends in a "quote"',
    "ends in a backslash \\",
    "ends in a <tag> </context>",
    "ends in 日本語",
    "ends in e\u0301 and a\u0300",
    "ends in an emoji 👩\u200d🚀",
    "ends in an odd space\u00a0",
    "-",
)
# Every question is checked behind this many probes, and one behind each of the others: only what a context leaves open
# could be closed by one question and not by another.
_FULLY_PROBED = 3
# Places tried for the cut: the first is nearly always right.
_CUTS = 8


@dataclass(frozen=True)
class Rubric:
    """A workflow cut where its tokens stop depending on the context.

    A request then is `opening`, the tokens of one stretch of text (`before` of the context, then `between`), and what
    `rest` holds. `closing` ends the stretch's tokens whatever the context.
    """

    opening: Tokens
    before: Callable[[Any], str]
    between: str
    closing: Tokens
    rest: RequestPlan

    def text(self, context: Any) -> str:
        """The stretch of text to tokenize for `context`."""
        return self.before(context) + self.between

    def plan(self, tokens: Tokens) -> RequestPlan | None:
        """The plan of a request from its stretch's tokens; None when they do not end as those of the proof did."""
        if tokens[len(tokens) - len(self.closing) :] != self.closing:
            return None
        prefix = self.opening + tokens + self.rest.prefix
        if len(self.rest.branches) == 1:
            branch = self.rest.branches[0]
            return RequestPlan((), (Branch(prefix + branch.tokens, branch.answers),))
        return RequestPlan(prefix, self.rest.branches)


def compile_rubric(encoder: QuestionEncoder, questions: Mapping[str, Question]) -> Rubric | None:
    """Cut `questions` where their tokens stop depending on the context; None when no such place can be proven.

    The places tried begin a pre-token with an ASCII character that is no space, in the text that all questions share
    after the context. A pre-tokenizer reads left to right, and what it does there depends on the few characters around
    the place, which are the layout's own whatever the context. The first place is taken from which full renders of all
    PROBES have exactly the tokens of the parts, answers included. A context that changes how its stretch of text ends
    is told at its request by the stretch's last tokens, see `Rubric.plan`. Raises InputError as the encoder does.
    """
    probes = [probe for probe in PROBES if _expressible(encoder, probe)]
    if not probes:
        return None
    texts = {name: encoder.after(name, question) for name, question in questions.items()}
    afters = [after for _, after in texts.values()]
    common = afters[0][: common_length(afters)]
    reference = _reference(encoder, questions, probes)
    opening, first = encoder.before(probes[0])
    places = [start - len(first) for start in encoder.word_starts(first + common) if start >= len(first)]
    for cut in places[:_CUTS]:
        rest = {name: encoder.closing(name, answers, after[cut:]) for name, (answers, after) in texts.items()}
        stretches = encoder.encode_texts([encoder.before(probe)[1] + common[:cut] for probe in probes])
        exact = all(
            wanted == (opening + stretch + rest[name][0], rest[name][1])
            for stretch, found in zip(stretches, reference, strict=True)
            for name, wanted in found.items()
        )
        if exact:
            same = common_length([stretch[::-1] for stretch in stretches])
            return Rubric(
                opening,
                lambda context: encoder.before(context)[1],
                common[:cut],
                stretches[0][len(stretches[0]) - same :],
                _shared(list(rest.values())),
            )
    return None


def _expressible(encoder: QuestionEncoder, probe: Any) -> bool:
    """Whether the vocabulary has tokens for all of `probe`; a context of which it has not is refused anyway."""
    try:
        encoder.check_text(encoder.before(probe)[1])
    except InputError:
        return False
    return True


def _reference(
    encoder: QuestionEncoder, questions: Mapping[str, Question], probes: Sequence[Any]
) -> list[dict[str, tuple[Tokens, tuple[Tokens, ...]]]]:
    """Full renders behind each probe, by question."""
    names = list(questions)
    found = []
    for index, probe in enumerate(probes):
        asked = names if index < _FULLY_PROBED else [names[index % len(names)]]
        found.append({name: encoder.encode(name, probe, questions[name]) for name in asked})
    return found


def _shared(rest: list[tuple[Tokens, tuple[Tokens, ...]]]) -> RequestPlan:
    return RequestPlan((), (Branch(*rest[0]),)) if len(rest) == 1 else share_prefix(rest)
