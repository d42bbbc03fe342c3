"""What a row asks."""

import pytest

from jevify import Choice, Noul, Workflow
from jevify.bulk.rows import Place, Row, RowReader, id_of, reason_of
from jevify.errors import InputError

pytestmark = pytest.mark.cpu
WORKFLOW = Workflow(questions={"late": Noul(instructions="Is it late?")})


def row(**fields):
    return Row(7, Place(7), fields=fields)


def refusal(reader, given):
    with pytest.raises(InputError) as caught:
        reader.read(given)
    return reason_of(caught.value, given.number)


def test_a_context_is_asked_with_the_workflow_itself():
    asked = RowReader(WORKFLOW).read(row(context="a", id="x", prompt=None))
    assert (asked.id, asked.context) == ("x", "a")
    assert asked.workflow is WORKFLOW


def test_messages_are_asked_as_a_request_asks_them():
    messages = [{"role": "user", "content": "hi"}]
    asked = RowReader(WORKFLOW).read(row(context="a", messages=messages))
    assert asked.context == {"context": "a", "messages": messages}


def test_equal_prompts_share_one_workflow():
    reader = RowReader(WORKFLOW)
    one, other, again, named = (
        reader.read(row(context="a", **given)).workflow
        for given in ({"prompt": "Red?"}, {"prompt": "Blue?"}, {"prompt": "Red?"}, {"prompts": {"late": "Red?"}})
    )
    assert [workflow.questions["late"].instructions for workflow in (one, other, named)] == ["Red?", "Blue?", "Red?"]
    assert again is one
    for number in range(200):
        reader.read(row(context="a", prompt=f"Number {number}?"))
    assert len(reader._prompted) == 64


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, '$.context: is missing: give a "context" or "messages"'),
        ({"context": None}, '$.context: is missing: give a "context" or "messages"'),
        ({"context": " "}, "$.context: must not be empty"),
        ({"context": 3}, "$.context: must be a string, an object or an array, not a number"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "$.messages[0].role: must be 'system'"),
        ({"context": "a", "prompts": {"early": "x"}}, "$.prompts.early: is no question of the workflow"),
        ({"context": "a", "id": 1.5}, "$.id: must be a string or a whole number, not a number"),
        ({"context": "a", "id": True}, "$.id: must be a string or a whole number, not a boolean"),
    ],
)
def test_what_is_wrong_is_told_without_repeating_the_row(fields, reason):
    told = refusal(RowReader(WORKFLOW), row(**fields))
    assert told.startswith(reason)
    assert "row 7" not in told


def test_several_problems_stand_on_one_line():
    bare = Workflow(questions={name: Choice(criteria=["x", "y"]) for name in ("one", "two")})
    told = refusal(RowReader(bare), row(context="a"))
    assert told.count("; $.prompts.two: is missing") == 1
    assert "\n" not in told


def test_names_of_fields_that_are_not_read_are_kept_up_to_a_few():
    reader = RowReader(WORKFLOW)
    for number in range(20):
        reader.read(row(context="a", label=1, **{f"f{number}": 0}))
    assert list(reader.unread) == ["label", *(f"f{number}" for number in range(7))]


def test_other_errors_are_told_with_their_kind():
    assert reason_of(RuntimeError("out\nof luck"), 7) == "RuntimeError: out; of luck"
    assert reason_of(MemoryError(), 7) == "MemoryError"
    assert [id_of(row(id=given)) for given in ("x", 3, 1.5, None)] == ["x", 3, None, None]
    assert id_of(Row(1, Place(1), reason="bad")) is None
