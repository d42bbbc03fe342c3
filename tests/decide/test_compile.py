"""Workflows kept in compiled form: each is made once, never taken for another, and lets nothing bad through."""

import threading
from types import MappingProxyType

import pytest

import tiny
from encoders import encoder_of, full
from jevify import Choice, Noul, Score, Workflow
from jevify.decide import compile as module
from jevify.decide.compile import CACHED_WORKFLOWS, Limits, RequestCompiler
from jevify.errors import InputError

pytestmark = pytest.mark.cpu
QUESTIONS = {
    "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical support": None}),
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad"]),
}
ONE = {"late": Noul(instructions="Is it late?")}
LIMITS = Limits(questions=32, question_tokens=10_000, context_length=20_000)


@pytest.fixture(scope="module")
def encoder():
    return encoder_of(tiny.tokenizer())


@pytest.fixture
def compiler(encoder):
    return RequestCompiler(encoder, LIMITS)


@pytest.fixture
def made(monkeypatch):
    """The questions of every workflow that was compiled."""
    found = []
    original = module.compile_rubric
    monkeypatch.setattr(module, "compile_rubric", lambda *given: found.append(given[1]) or original(*given))
    return found


def plain(kind="noul", instructions="Is it late?"):
    return {"late": {"type": kind, "instructions": instructions}}


def test_branches_are_the_same_objects_for_every_context(compiler):
    first, second = (compiler.compile(text, QUESTIONS).plan for text in ("One text.", "Another, longer text."))
    assert first.branches is second.branches
    assert first.prefix != second.prefix


MOOD = {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad"]}


@pytest.mark.parametrize(
    "form",
    [
        lambda: {**plain(), "mood": MOOD},
        lambda: Workflow.parse({"questions": {**plain(), "mood": MOOD}}),
        lambda: dict(Workflow.parse({"questions": {**plain(), "mood": MOOD}}).questions),
        lambda: {**plain(), "mood": Score(instructions="How bad?", criteria=["fine", "bad"])},
        lambda: MappingProxyType({**plain(), "mood": MOOD}),
    ],
    ids=["plain", "workflow", "objects", "mixed", "mapping"],
)
def test_equal_questions_are_compiled_once_in_every_form(compiler, made, form):
    first, *others = [compiler.compile(f"Text {index}.", form()).plan for index in range(3)]
    assert len(made) == 1
    assert all(plan.branches is first.branches for plan in others)


def test_other_questions_are_never_mistaken_for_known_ones(compiler):
    known = compiler.compile("A text.", plain()).plan
    assert compiler.compile("A text.", plain(instructions="Is it later?")).plan != known
    with pytest.raises(InputError, match="type"):
        compiler.compile("A text.", plain("nul"))
    with pytest.raises(InputError, match="the key 1, a number: keys must be strings"):
        compiler.compile("A text.", {1: plain()["late"]})
    with pytest.raises(InputError, match="the key 1, a number: keys must be strings"):
        compiler.compile("A text.", {1: Noul(instructions="Is it late?")})


@pytest.mark.parametrize("wrap", [dict, lambda questions: Workflow(questions=questions)], ids=["dict", "workflow"])
@pytest.mark.parametrize(
    ("question", "change"),
    [
        (Score(instructions="How bad?", criteria=["fine", "bad"]), lambda question: question.criteria.reverse()),
        (Choice(instructions="Which?", criteria=["a", "b"]), lambda question: question.criteria.update(c="new")),
    ],
    ids=["levels reversed", "label added"],
)
def test_a_question_changed_in_place_is_another(compiler, encoder, wrap, question, change):
    question = question.model_copy(deep=True)
    before = question.model_copy(deep=True)
    given = wrap({"q": question})
    compiler.compile("A text.", given)
    change(question)
    request = compiler.compile("A text.", given)
    assert request.plan == full(encoder, "A text.", {"q": question})
    assert request.questions["q"].criteria == question.criteria
    # And what was kept has not changed with it.
    old = compiler.compile("A text.", wrap({"q": before}))
    assert old.plan == full(encoder, "A text.", {"q": before})
    assert old.questions["q"].criteria == before.criteria


def test_one_mapping_may_ask_another_question_each_time(compiler, encoder):
    """Its former questions are gone then, and their addresses are used again."""
    questions = {}
    for index in range(30):
        questions["q"] = Noul(instructions=f"Is it number {index}?")
        assert compiler.compile("A text.", questions).plan == full(encoder, "A text.", questions)


def test_a_workflow_broken_in_place_makes_no_such_mapping_valid(compiler):
    question = Choice(instructions="Which?", criteria=["a", "b"])
    workflow = Workflow(questions={"q": question})
    workflow.questions["q"].criteria[" "] = None
    compiler.compile("A text.", workflow)
    with pytest.raises(InputError, match="must not be empty or blank"):
        compiler.compile("A text.", dict(workflow.questions))


def test_the_workflows_used_last_are_kept(compiler, made):
    for number in range(CACHED_WORKFLOWS + 5):
        compiler.compile("A text.", plain(instructions=f"Is it {number}?"))
    compiler.compile("A text.", plain(instructions="Is it 5?"))
    assert len(made) == CACHED_WORKFLOWS + 5
    compiler.compile("A text.", plain(instructions="Is it 4?"))
    assert len(made) == CACHED_WORKFLOWS + 6
    assert len(compiler._known) == CACHED_WORKFLOWS


@pytest.mark.parametrize("context", ["", "   ", None, 7, {}, [], "half \ud800 a pair", {"a": float("nan")}])
def test_a_known_workflow_lets_no_bad_context_through(compiler, context):
    with pytest.raises(InputError) as first:
        compiler.compile(context, QUESTIONS)
    compiler.compile("A good text.", QUESTIONS)
    with pytest.raises(InputError) as second:
        compiler.compile(context, QUESTIONS)
    assert str(first.value) == str(second.value)


def test_limits_hold_for_compiled_requests(encoder):
    size = len(encoder.encode("late", "word " * 50, ONE["late"])[0])
    compiler = RequestCompiler(encoder, Limits(questions=2, question_tokens=size, context_length=size))
    assert compiler.compile("word " * 50, ONE).question_tokens == [size]
    with pytest.raises(InputError, match=rf"questions\.late: the full question is \d+ tokens, and the limit is {size}"):
        compiler.compile("word " * 51, ONE)
    with pytest.raises(InputError, match="3 questions, and the limit is 2"):
        compiler.compile("A text.", QUESTIONS)


def test_threads_that_compile_one_workflow_at_once_share_it(compiler, encoder):
    start = threading.Barrier(4)
    found = {}

    def work(number):
        start.wait()
        for index in range(5):
            context = f"Text {number} {index}."
            found[context] = compiler.compile(context, QUESTIONS).plan

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(plan.branches) for plan in found.values()}) == 1
    assert found == {context: full(encoder, context, QUESTIONS) for context in found}
    assert len(found) == 20
