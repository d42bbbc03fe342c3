import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jevify.decide.jsonpath import json_path
from jevify.decide.questions import MAX_OPTIONS, Choice, Noul, NoulCriteria, Question, Score
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

pytestmark = pytest.mark.cpu

ODD_LABELS = [
    "organ",
    "organism",
    "\N{GRINNING FACE}",
    "line\nbreak",
    'say "hi"',
    "it's",
    "\u00e9",
    "e\u0301",
    " a",
    "a",
]


def one(question: object) -> Question:
    return Workflow.parse({"questions": {"q": question}}).questions["q"]


def problems(question: object) -> list[str]:
    with pytest.raises(InputError) as caught:
        one(question)
    return str(caught.value).splitlines()


def test_choice_from_a_map_and_from_a_list():
    described = Choice(instructions="Which team?", criteria={"billing": "Invoices", "tech": None})
    assert described.type == "choice"
    assert described.labels == ("billing", "tech")
    assert described.descriptions == ("Invoices", None)
    listed = Choice(criteria=["b", "a"])
    assert listed.criteria == {"b": None, "a": None}
    assert listed.labels == ("b", "a")
    assert Choice(criteria=("b", "a")) == listed


def test_noul_labels_and_descriptions_put_no_first():
    assert Noul().labels == ("no", "yes")
    assert Noul().descriptions == (None, None)
    assert Noul(criteria=NoulCriteria(true="asks")).descriptions == (None, "asks")
    assert one({"type": "noul", "criteria": {"true": "T", "false": "F"}}).descriptions == ("F", "T")
    assert one({"type": "noul", "criteria": {}}).descriptions == (None, None)


def test_score_levels_count_from_zero():
    score = Score(criteria=["low", "mid", "high"])
    assert score.labels == ("0", "1", "2")
    assert score.descriptions == ("low", "mid", "high")


@pytest.mark.parametrize(
    ("question", "needs"),
    [
        (Choice(criteria=["a", "b"]), True),
        (Choice(criteria={"a": None, "b": "said"}), False),
        (Choice(instructions="Which?", criteria=["a"]), False),
        (Noul(), True),
        (Noul(criteria=NoulCriteria()), True),
        (Noul(criteria=NoulCriteria(false="said")), False),
        (Noul(instructions="Is it?"), False),
        (Score(criteria=["only"]), False),
    ],
)
def test_needs_prompt(question, needs):
    assert question.needs_prompt is needs


@pytest.mark.parametrize(
    "question", [Choice(criteria={"a": "x"}), Noul(criteria=NoulCriteria(true="t")), Score(criteria=["x"])]
)
def test_with_instructions_is_a_checked_copy(question):
    asked = question.with_instructions("Which?")
    assert asked.instructions == "Which?"
    assert (type(asked), asked.criteria) == (type(question), question.criteria)
    assert question.instructions is None
    with pytest.raises(ValidationError):
        question.with_instructions(" \n")


def test_questions_are_frozen_and_do_not_share_the_given_map():
    criteria = {"a": None}
    choice = Choice(criteria=criteria)
    criteria["b"] = None
    assert choice.labels == ("a",)
    with pytest.raises(ValidationError):
        choice.instructions = "Other?"


def test_odd_labels_are_kept_as_they_are():
    for source in (ODD_LABELS, dict.fromkeys(ODD_LABELS)):
        question = {"type": "choice", "criteria": source}
        assert one(question).labels == tuple(ODD_LABELS)
        text = json.dumps({"questions": {"q": question}})
        assert Workflow.parse(text).questions["q"].labels == tuple(ODD_LABELS)


@pytest.mark.parametrize("count", [1, MAX_OPTIONS])
def test_the_ends_of_the_option_range_are_accepted(count):
    labels = [f"l{i}" for i in range(count)]
    assert len(one({"type": "choice", "criteria": labels}).labels) == count
    assert len(one({"type": "choice", "criteria": dict.fromkeys(labels)}).labels) == count
    assert one({"type": "score", "criteria": labels}).labels[-1] == str(count - 1)


@pytest.mark.parametrize("kind", ["choice", "score"])
@pytest.mark.parametrize(
    ("count", "reason"),
    [(0, "needs at least 1 entry, has 0: add one"), (256, "takes at most 255 entries, has 256: remove some")],
)
def test_too_few_and_too_many_options(kind, count, reason):
    question = {"type": kind, "criteria": [f"l{i}" for i in range(count)]}
    assert problems(question) == [f"workflow: $.questions.q.criteria: {reason}"]


LABEL_PROBLEMS = [
    ({"type": "choice", "criteria": ["a", "b", "a"]}, '.criteria[2]: repeats the label "a"'),
    ({"type": "choice", "criteria": ["a", ""]}, ".criteria[1]: must not be empty or blank"),
    ({"type": "choice", "criteria": ["a", "\t"]}, ".criteria[1]: must not be empty or blank"),
    ({"type": "choice", "criteria": ["a", 1]}, ".criteria[1]: must be a string, not a number"),
    ({"type": "choice", "criteria": [True]}, ".criteria[0]: must be a string, not a boolean"),
    ({"type": "choice", "criteria": [["a"]]}, ".criteria[0]: must be a string, not an array"),
    ({"type": "choice", "criteria": {"": "x"}}, '.criteria[""]: must not be empty or blank'),
    ({"type": "choice", "criteria": {"[key]": 1}}, '.criteria["[key]"]: must be a string, not a number'),
    ({"type": "choice", "criteria": {"a": ""}}, ".criteria.a: must not be empty or blank"),
    ({"type": "choice", "criteria": {"a": ["x"]}}, ".criteria.a: must be a string, not an array"),
    (
        {"type": "choice", "criteria": {1: "x", "a": "y"}},
        ".criteria: has the key 1, a number: keys must be strings",
    ),
    ({"type": "choice", "criteria": "a"}, ".criteria: must be an object, not a string"),
    ({"type": "choice", "criteria": None}, ".criteria: must be an object, not null"),
    ({"type": "choice"}, ".criteria: is missing"),
    ({"type": "score"}, ".criteria: is missing"),
    ({"type": "score", "criteria": {"0": "low"}}, ".criteria: must be an array, not an object"),
    ({"type": "score", "criteria": ["low", " "]}, ".criteria[1]: must not be empty or blank"),
    ({"type": "score", "criteria": ["low", 2]}, ".criteria[1]: must be a string, not a number"),
    ({"type": "noul", "criteria": ["yes"]}, ".criteria: must be an object, not an array"),
    (
        {"type": "noul", "criteria": {"yes": "x"}},
        ".criteria.yes: is not a known field: remove it or use one of true, false",
    ),
    ({"type": "noul", "criteria": {"true": ""}}, ".criteria.true: must not be empty or blank"),
    ({"type": "noul", "instructions": " "}, ".instructions: must not be empty or blank"),
    ({"type": "noul", "instructions": 5}, ".instructions: must be a string, not a number"),
    (
        {"type": "noul", "prompt": "x"},
        ".prompt: is not a known field: remove it or use one of type, instructions, criteria",
    ),
    ({"type": "noul", "noul": 1}, ".noul: is not a known field"),
    ({"type": "box"}, '.type: must be one of "choice", "noul", "score", not "box"'),
    ({"type": None}, '.type: must be one of "choice", "noul", "score", not null'),
    ({"type": ["noul"]}, '.type: must be one of "choice", "noul", "score", not an array'),
    ({"criteria": ["a"]}, '.type: is missing: add one of "choice", "noul", "score"'),
    ("noul", ": must be an object, not a string"),
    (None, ": must be an object, not null"),
    ([], ": must be an object, not an array"),
]


@pytest.mark.parametrize(("question", "told"), LABEL_PROBLEMS)
def test_what_is_wrong_is_told_with_its_path(question, told):
    (line,) = problems(question)
    assert line.startswith("workflow: $.questions.q" + told)


def test_every_label_problem_is_told():
    lines = problems({"type": "choice", "criteria": ["a", "a", "", 3], "extra": 1})
    paths = [re.match(r"workflow: (\S+):", line).group(1) for line in lines]
    assert paths == [f"$.questions.q.{end}" for end in ("criteria[1]", "criteria[2]", "criteria[3]", "extra")]


def test_direct_construction_raises_a_value_error_in_the_same_words():
    with pytest.raises(ValueError, match=r'repeats the label "\{a\}"'):
        Choice(criteria=["{a}", "{a}"])
    with pytest.raises(ValueError, match="is not a known field"):
        Noul(instruction="Is it?")
    with pytest.raises(ValueError, match="must be an array"):
        Score(criteria={"low", "high"})


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1, unique=True))
def test_any_unicode_labels_survive_the_way_through_json(labels):
    text = json.dumps({"questions": {"q": {"type": "choice", "criteria": labels}}})
    assert Workflow.parse(text).questions["q"].labels == tuple(labels)


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        ((), "$"),
        (("questions", "a_1", "criteria", 2), "$.questions.a_1.criteria[2]"),
        (("questions", "a.b"), '$.questions["a.b"]'),
        (("a b", ""), '$["a b"][""]'),
        (('"\n',), '$["\\"\\n"]'),
        (("\N{GRINNING FACE}",), '$["\N{GRINNING FACE}"]'),
        (("\ud800",), '$["\\ud800"]'),
        (("\x1b[31m",), '$["\\u001b[31m"]'),
    ],
)
def test_json_paths_quote_odd_keys(loc, path):
    assert json_path(loc) == path


def test_levels_may_be_a_tuple():
    assert Score(criteria=("low", "high")).labels == ("0", "1")
