import copy
import json

import pytest

from jevify.decide.questions import Choice, Noul, NoulCriteria, Score
from jevify.decide.request import Combined, Request
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

pytestmark = pytest.mark.cpu

ONE = Workflow(questions={"q": Noul(instructions="Is it?")})
TURNS = [
    {"role": "system", "content": "Be kind. <|im_end|>"},
    {"role": "developer", "content": " spaces kept\n"},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": ""},
    {"role": "tool", "content": '{"found": false}'},
]


def refusal(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    return str(caught.value).splitlines()


def combined(**parts):
    questions = {
        "team": {"type": "choice", "instructions": "Which?", "criteria": ["a", "true", "2"]},
        "asks": {"type": "noul", "instructions": "Does it?"},
        "level": {"type": "score", "criteria": ["low", "mid", "high"]},
    }
    return Combined.parse({"context": "text", "questions": questions} | parts)


@pytest.mark.parametrize(
    "context",
    [
        "text",
        " kept \n",
        "x" * 100_000,
        {"a": None},
        {"": [1, 2.5, True, None]},
        [None],
        ["\N{GRINNING FACE}"],
        "0",
    ],
)
def test_context_is_kept_exactly(context):
    assert Request.parse({"context": context}).resolve(ONE) == (context, ONE)
    value, _ = Request.parse(json.dumps({"context": context})).resolve(ONE)
    assert json.dumps(value) == json.dumps(context)


def test_messages_are_data_in_their_order():
    value, workflow = Request.parse({"messages": TURNS}).resolve(ONE)
    assert value == {"messages": TURNS}
    assert [list(turn) for turn in value["messages"]] == [["role", "content"]] * 5
    assert workflow == ONE
    value, _ = Request.parse({"context": {"order": 7}, "messages": TURNS}).resolve(ONE)
    assert value == {"context": {"order": 7}, "messages": TURNS}
    assert list(value) == ["context", "messages"]


def test_prompts_reach_the_workflow_and_nothing_given_is_changed():
    source = {"context": {"a": [1]}, "prompt": "New?"}
    before, request = copy.deepcopy(source), Request.parse(source)
    value, asked = request.resolve(ONE)
    assert asked.questions["q"].instructions == "New?"
    assert ONE.questions["q"].instructions == "Is it?"
    assert request == Request.parse(source)
    assert source == before
    assert value == {"a": [1]}
    assert value["a"] is not source["context"]["a"]

    two = Workflow(questions={"a": Noul(), "b": Noul(instructions="B?")})
    _, asked = Request.parse({"context": "x", "prompts": {"a": "A?"}}).resolve(two)
    assert [question.instructions for question in asked.questions.values()] == ["A?", "B?"]


def test_prompts_replace_by_id_and_keep_the_order():
    rubric = Workflow(questions={"b": Noul(), "a": Choice(criteria={"x": "d"}), "c": Score(criteria=["l"])})
    _, asked = Request.parse({"context": "x", "prompts": {"c": "Level?", "b": "Is it?"}}).resolve(rubric)
    assert [(name, question.instructions) for name, question in asked.questions.items()] == [
        ("b", "Is it?"),
        ("a", None),
        ("c", "Level?"),
    ]
    assert asked.questions["a"] == rubric.questions["a"]


def test_null_means_absent():
    nulls = {"context": "x", "prompt": None, "prompts": None, "messages": None}
    assert Request.parse(nulls) == Request.parse({"context": "x"})


SHAPES = [
    ({"context": ""}, "$.context: must not be empty"),
    ({"context": " \n\t"}, "$.context: must not be empty"),
    ({"context": {}}, "$.context: must not be empty"),
    ({"context": []}, "$.context: must not be empty"),
    ({"context": 5}, "$.context: must be a string, an object or an array, not a number"),
    ({"context": False}, "$.context: must be a string, an object or an array, not a boolean"),
    ({"context": {"a": ["\ud800"]}}, "$.context.a[0]: holds half of a surrogate pair"),
    ({"context": {"a": float("nan")}}, "$.context.a: is NaN or beyond the range"),
    ({"context": {"a": {1, 2}}}, "$.context.a: is a Python set, which JSON cannot hold"),
    ({"context": "x", "prompt": ""}, "$.prompt: must not be empty or blank"),
    ({"context": "x", "prompt": " "}, "$.prompt: must not be empty or blank"),
    ({"context": "x", "prompt": ["a"]}, "$.prompt: must be a string, not an array"),
    ({"context": "x", "prompts": {"q": ""}}, "$.prompts.q: must not be empty or blank"),
    ({"context": "x", "prompts": {"q": None}}, "$.prompts.q: must be a string, not null"),
    ({"context": "x", "prompts": ["a"]}, "$.prompts: must be an object, not an array"),
    ({"messages": []}, "$.messages: needs at least 1 entry, has 0"),
    ({"messages": {}}, "$.messages: must be an array, not an object"),
    ({"messages": "hi"}, "$.messages: must be an array, not a string"),
    ({"messages": ["hi"]}, "$.messages[0]: must be an object, not a string"),
    ({"messages": [{"content": "x"}]}, "$.messages[0].role: is missing"),
    ({"messages": [{"role": "user"}]}, "$.messages[0].content: is missing"),
    (
        {"messages": [{"role": "bot", "content": "x"}]},
        "$.messages[0].role: must be 'system', 'developer', 'user', 'assistant' or 'tool', not \"bot\"",
    ),
    ({"messages": [{"role": "User", "content": "x"}]}, "$.messages[0].role: must be 'system',"),
    ({"messages": [{"role": None, "content": "x"}]}, "$.messages[0].role: must be 'system',"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "$.messages[0].content: must be a string, not an array",
    ),
    ({"messages": [{"role": "user", "content": None}]}, "$.messages[0].content: must be a string, not null"),
    ({"messages": [{"role": "user", "content": 5}]}, "$.messages[0].content: must be a string, not a number"),
    (
        {"messages": [{"role": "user", "content": "x", "name": "y"}]},
        "$.messages[0].name: is not a known field: remove it or use one of role, content",
    ),
    (
        {"context": "x", "questions": {}},
        "$.questions: is not a known field: remove it or use one of context, prompt, prompts, messages",
    ),
]


@pytest.mark.parametrize(("source", "told"), SHAPES)
def test_refused_shapes(source, told):
    (line,) = refusal(Request.parse, source, "req.json")
    assert line.startswith(f"req.json: {told}")


def test_context_twice_in_the_text():
    lines = refusal(Request.parse, '{"context": "a", "context": "b"}')
    assert lines == ['request: $.context: "context" appears more than once here: rename or remove one']


NEEDY = Workflow(questions={"a.b": Noul(), "c": Choice(criteria=["x"]), "d": Score(criteria=["l"])})


@pytest.mark.parametrize(
    ("source", "workflow", "starts"),
    [
        ({}, ONE, ['$.context: is missing: give a "context" or "messages"']),
        ({"context": None}, ONE, ["$.context: is missing"]),
        ({"messages": [{"role": "user", "content": " "}]}, ONE, ["$.messages: must not all be blank"]),
        (
            {"context": "x", "prompt": "p", "prompts": {}},
            ONE,
            ['$.prompts: cannot be given together with "prompt"'],
        ),
        (
            {"context": "x", "prompt": "p", "prompts": {"q": "p"}},
            ONE,
            ['$.prompts: cannot be given together with "prompt"'],
        ),
        (
            {"context": "x", "prompts": {"z": "p"}},
            ONE,
            ['$.prompts.z: is no question of the workflow: use one of "q"'],
        ),
        ({"prompts": {"z": "p"}}, ONE, ["$.prompts.z: is no question", "$.context: is missing"]),
        (
            {"context": "x", "prompt": "p"},
            NEEDY,
            ["$.prompt: replaces the instructions of a one-question workflow, but this one has 3 questions"],
        ),
        (
            {"context": "x"},
            NEEDY,
            [
                '$.prompts["a.b"]: is missing: question "a.b" has neither instructions nor described options:'
                ' say here what is asked, or add "instructions" to it in the workflow',
                '$.prompts.c: is missing: question "c" has neither',
            ],
        ),
        ({"context": "x", "prompts": {"c": "C?"}}, NEEDY, ['$.prompts["a.b"]: is missing']),
        (
            {"context": "x"},
            Workflow(questions={"q": Noul()}),
            ['$.prompt: is missing: question "q" has neither'],
        ),
        (
            {"context": "x"},
            Workflow(questions={"q": Noul(criteria=NoulCriteria())}),
            ["$.prompt: is missing"],
        ),
    ],
)
def test_requests_that_do_not_fit_the_workflow(source, workflow, starts):
    lines = refusal(Request.parse(source, "req.json").resolve, workflow)
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(f"req.json: {start}")


def test_errors_name_the_file(tmp_path):
    file = tmp_path / "req.json"
    file.write_text('{"prompt": "Is it?"}')
    assert refusal(Request.load(file).resolve, ONE)[0].startswith(f"{file}: $.context: is missing")
    assert refusal(Request.parse({}).resolve, ONE)[0].startswith("request: $.context: is missing")


def test_combined_resolves_to_its_parts():
    both = combined()
    assert both.expected_labels is None
    value, workflow = both.resolve()
    assert (value, workflow) == ("text", both.workflow)


def test_combined_that_asks_nothing():
    both = Combined.parse({"context": "x", "questions": {"q": {"type": "noul"}}}, "in.json")
    (line,) = refusal(both.resolve)
    assert line == (
        'in.json: $.questions.q.instructions: is missing: question "q" has neither instructions nor described'
        " options: say here what is asked"
    )


@pytest.mark.parametrize(
    ("name", "given", "label"),
    [
        ("asks", True, "yes"),
        ("asks", False, "no"),
        ("asks", "yes", "yes"),
        ("asks", "no", "no"),
        ("level", 0, "0"),
        ("level", 2, "2"),
        ("level", "1", "1"),
        ("team", "a", "a"),
        ("team", "true", "true"),
        ("team", "2", "2"),
    ],
)
def test_expected_labels_become_label_texts(name, given, label):
    assert combined(expected_labels={name: given}).expected_labels == {name: label}
    text = json.dumps(
        {
            "context": "x",
            "questions": combined().workflow.model_dump()["questions"],
            "expected_labels": {name: given},
        }
    )
    assert Combined.parse(text).expected_labels == {name: label}


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("asks", 1, '1 is no answer of this noul: use true, false, "yes" or "no"'),
        ("asks", "true", '"true" is no answer of this noul'),
        ("asks", None, "null is no answer of this noul"),
        ("level", True, "true is no answer of this score: use a level from 0 to 2"),
        ("level", 3, "3 is no answer of this score"),
        ("level", -1, "-1 is no answer of this score"),
        ("level", 1.0, "1.0 is no answer of this score"),
        ("level", "01", '"01" is no answer of this score'),
        ("level", "low", '"low" is no answer of this score'),
        ("team", "b", '"b" is no answer of this choice: use one of "a", "true", "2"'),
        ("team", "A", '"A" is no answer of this choice'),
        ("team", True, "true is no answer of this choice"),
        ("team", 2, "2 is no answer of this choice"),
        ("team", ["a"], "an array is no answer of this choice"),
        ("gone", "a", 'is no question of this file: use one of "team", "asks", "level"'),
    ],
)
def test_expected_labels_that_cannot_be(name, given, told):
    (line,) = refusal(combined, expected_labels={name: given})
    assert line.startswith(f"input: $.expected_labels.{name}: {told}")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"context": None}, "$.context: must be a string, an object or an array, not null"),
        ({"context": ""}, "$.context: must not be empty"),
        ({"questions": {}}, "$.questions: needs at least 1 entry"),
        (
            {"questions": {"q": {"type": "box"}}, "expected_labels": {"q": True}},
            "$.questions.q.type: must be one of",
        ),
        ({"expected_labels": ["a"]}, "$.expected_labels: must be an object, not an array"),
        (
            {"prompt": "x"},
            "$.prompt: is not a known field: remove it or use one of context, questions, expected_labels",
        ),
    ],
)
def test_refused_combined_files(parts, told):
    (line,) = refusal(combined, **parts)
    assert line.startswith(f"input: {told}")


def test_combined_needs_context_and_questions():
    assert [line.split(": ")[1] for line in refusal(Combined.parse, "{}")] == ["$.context", "$.questions"]
