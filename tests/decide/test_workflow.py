import copy
import json
from pathlib import Path

import pytest

from jevify.decide.questions import Choice, Noul, Score
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

pytestmark = pytest.mark.cpu

SHIPPED = Path(__file__).parents[2] / "workflow.json"


class Recorder:
    def __init__(self):
        self.calls = []

    def decide(self, context, questions, *, mode):
        self.calls.append((context, questions, mode))
        return {"answers": {}}


def refusal(source, where=None):
    with pytest.raises(InputError) as caught:
        Workflow.parse(source, where)
    return str(caught.value)


def workflow(**questions):
    return Workflow(questions=questions)


def test_the_shipped_rubric():
    rubric = Workflow.load(SHIPPED)
    kinds = {name: type(question) for name, question in rubric.questions.items()}
    assert list(kinds.items()) == [
        ("department", Choice),
        ("refund_requested", Noul),
        ("human_requested", Noul),
        ("severity", Score),
    ]
    assert len(rubric.questions["severity"].criteria) == 3
    assert not any(question.needs_prompt for question in rubric.questions.values())
    assert list(json.loads(SHIPPED.read_text("utf-8"))) == ["questions"]


def test_order_of_questions_is_kept():
    names = ["z", "a", "m"]
    parsed = Workflow.parse(json.dumps({"questions": {name: {"type": "noul"} for name in names}}))
    assert list(parsed.questions) == names


def test_parse_takes_question_objects_and_changes_nothing():
    source = {"questions": {"a": Choice(criteria=["x"]), "b": {"type": "noul", "criteria": {"true": "t"}}}}
    before = copy.deepcopy(source)
    parsed = Workflow.parse(source)
    assert source == before
    assert parsed.questions["a"] == Choice(criteria=["x"])
    source["questions"]["b"]["criteria"]["true"] = "changed"
    assert parsed.questions["b"].descriptions == (None, "t")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("[]", "workflow: $: must be an object, not an array"),
        ("null", "workflow: $: must be an object, not null"),
        ('"questions"', "workflow: $: must be an object, not a string"),
        ("{}", "workflow: $.questions: is missing: add it"),
        ('{"questions": {}}', "workflow: $.questions: needs at least 1 entry, has 0: add one"),
        ('{"questions": []}', "workflow: $.questions: must be an object, not an array"),
        ('{"questions": {"": {"type": "noul"}}}', 'workflow: $.questions[""]: must not be empty or blank'),
        ('{"questions": {"a.b": {}}}', 'workflow: $.questions["a.b"].type: is missing'),
        (
            '{"questions": {"q": {"type": "noul"}}, "context": "x"}',
            "workflow: $.context: is not a known field: remove it or use one of questions",
        ),
        ('{"questions": {\n "q": }}', "workflow: line 2, column 7: not valid JSON"),
        ('{"questions": {},}', "workflow: line 1, column 18: not valid JSON"),
        ("  \n", "workflow: is empty: write a JSON object"),
        (
            '{"questions": {"q": ' + "[" * 98 + "5" + "]" * 98 + "}}",
            "workflow: $.questions.q: must be an object",
        ),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "workflow: $.a[0]: is nested deeper than 100 levels"),
        ('{"questions": ' + "9" * 5000 + "}", "workflow: holds a number with too many digits"),
    ],
)
def test_refused_texts(source, told):
    assert refusal(source).startswith(told)


def test_very_deep_text_is_refused_wherever_the_parser_gives_up():
    assert refusal("[" * 5000 + "]" * 5000).endswith("is nested deeper than 100 levels: flatten it")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_lacks(number):
    source = '{"questions": {"q": {"type": "noul", "instructions": NUMBER}}}'.replace("NUMBER", number)
    told = refusal(source).splitlines()
    assert told[0].startswith("workflow: $.questions.q.instructions: is NaN or beyond the range of numbers")


@pytest.mark.parametrize(
    ("source", "path", "key"),
    [
        ('{"questions": {"q": {"type": "noul"}, "q": {"type": "noul"}}}', "$.questions.q", "q"),
        (
            '{"questions": {"q": {"type": "choice", "criteria": {"a b": "x", "a b": "y"}}}}',
            '$.questions.q.criteria["a b"]',
            "a b",
        ),
        (
            '{"questions": {"q": {"type": "choice", "criteria": {"\\u0061": "x", "a": "x"}}}}',
            "$.questions.q.criteria.a",
            "a",
        ),
        ('{"questions": {"q": {"type": "noul", "type": "noul"}}}', "$.questions.q.type", "type"),
        (
            '{"questions": {"q": {"type": "noul"}}, "questions": {"r": {"type": "noul"}}}',
            "$.questions",
            "questions",
        ),
    ],
)
def test_repeated_keys_in_the_text(source, path, key):
    assert refusal(source) == f'workflow: {path}: "{key}" appears more than once here: rename or remove one'


def test_canonically_equivalent_labels_are_not_duplicates():
    parsed = Workflow.parse('{"questions": {"q": {"type": "choice", "criteria": {"\u00e9": null, "e\u0301": null}}}}')
    assert parsed.questions["q"].labels == ("\u00e9", "e\u0301")


def test_lone_surrogates_are_refused_wherever_they_are():
    source = r'{"questions": {"q": {"type": "choice", "instructions": "\ud800", "criteria": {"x\udfff": null}}}}'
    lines = refusal(source).splitlines()
    assert [line.split(": holds half")[0] for line in lines] == [
        "workflow: $.questions.q.instructions",
        r'workflow: $.questions.q.criteria["x\udfff"]',
    ]
    "".join(lines).encode()
    pair = Workflow.parse(r'{"questions": {"q": {"type": "choice", "criteria": ["\ud83d\ude00"]}}}')
    assert pair.questions["q"].labels == ("\N{GRINNING FACE}",)


def test_all_problems_are_told_at_once():
    source = """{"questions": {
        "a": {"type": "choice", "criteria": {"x": "1", "x": "2"}, "hint": 1},
        "b": {"type": "scale"},
        "c": {"type": "score", "criteria": []}
    }, "model": "m"}"""
    lines = refusal(source, "rubric.json").splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "$.questions.a.criteria.x",
        "$.questions.a.hint",
        "$.questions.b.type",
        "$.questions.c.criteria",
        "$.model",
    ]
    assert all(line.startswith("rubric.json: ") for line in lines)


def test_python_values_that_are_no_json():
    cycle = {}
    cycle["a"] = cycle
    assert "$.a.a: is nested deeper than 100 levels" in refusal(cycle)
    assert "$.questions.q.instructions: is a Python object, which JSON cannot hold" in refusal(
        {"questions": {"q": {"type": "noul", "instructions": object()}}}
    )
    assert "$.questions: has the key 5, a number: keys must be strings" in refusal({"questions": {5: {}}})


def test_files(tmp_path):
    file = tmp_path / "w.json"
    file.write_bytes(b'\xef\xbb\xbf{"questions": {"q": {"type": "noul", "instructions": "Ist es gr\xc3\xbcn?"}}}')
    assert Workflow.load(file).questions["q"].instructions == "Ist es gr\u00fcn?"
    assert Workflow.load(str(file)) == Workflow.load(file)

    file.write_text('{"questions": {"q": {}}}')
    with pytest.raises(InputError) as caught:
        Workflow.load(file)
    assert str(caught.value).startswith(f"{file}: $.questions.q.type: is missing")

    file.write_bytes('{"questions": "\u00fc"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"w\.json: not UTF-8 text \(byte 15 "):
        Workflow.load(file)
    with pytest.raises(InputError, match=r"gone\.json: cannot be read \(.+\): check the path"):
        Workflow.load(tmp_path / "gone.json")
    with pytest.raises(InputError, match="cannot be read"):
        Workflow.load(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        Workflow.load("a\0b")


def test_digest_names_the_rubric_and_nothing_else():
    source = {"questions": {"q": {"type": "choice", "criteria": ["a", "b"]}}}
    digest = Workflow.parse(source).digest()
    assert digest == Workflow.parse(json.dumps(source, indent=3), "elsewhere").digest()
    # printf '[["q","choice",null,["a","b"],[null,null]]]' | sha256sum
    assert digest == "a67af4c77abae56746413e7e82105ad6e4281f7ae20b0a5ab8e038e0305f0ab1"
    others = [
        workflow(q=Choice(criteria=["b", "a"])),
        workflow(r=Choice(criteria=["a", "b"])),
        workflow(q=Choice(criteria={"a": None, "b": "x"})),
        workflow(q=Choice(criteria=["a", "b"], instructions="Which?")),
        workflow(q=Score(criteria=["a", "b"])),
        workflow(q=Choice(criteria=["a", "b"]), r=Noul()),
        workflow(r=Noul(), q=Choice(criteria=["a", "b"])),
    ]
    assert len({digest, *(other.digest() for other in others)}) == 8


def test_run_hands_the_engine_a_checked_request():
    engine, rubric = Recorder(), workflow(q=Noul())
    assert rubric.run(engine, {"k": [1, None]}, prompt="Is it?") == {"answers": {}}
    rubric.run(engine, messages=[{"role": "user", "content": "hi"}], prompts={"q": "Polite?"}, mode="independent")
    assert engine.calls == [
        ({"k": [1, None]}, workflow(q=Noul(instructions="Is it?")), "parallel"),
        (
            {"messages": [{"role": "user", "content": "hi"}]},
            workflow(q=Noul(instructions="Polite?")),
            "independent",
        ),
    ]


def test_run_refuses_before_the_engine_is_called():
    engine = Recorder()
    with pytest.raises(InputError, match=r"Workflow\.run: \$\.context: is missing"):
        workflow(q=Noul(instructions="Is it?")).run(engine)
    with pytest.raises(InputError, match=r"Workflow\.run: \$\.prompt: is missing"):
        workflow(q=Noul()).run(engine, "text")
    assert engine.calls == []
