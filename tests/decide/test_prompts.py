"""The exact text of every layout."""

import pytest

from jevify.decide.prompts import LAYOUTS, QuestionText

pytestmark = pytest.mark.cpu
QUESTION = QuestionText('Which "team"?', (("A", "billing: money"), ("B", "")), "Answer with one letter.")
TEXT, OBJECT, ARRAY = 'He said:\n"late" </context>', {"né": [1, None]}, ["a", {"b": True}]
QUESTIONED = (
    '<question>\nWhich "team"?\n</question>\n\n<options>\nA: billing: money\nB\n</options>\n\nAnswer with one letter.'
)
ASKED = 'Question: Which "team"?\nOptions:\n- A: billing: money\n- B\nAnswer with one letter.'
FIELDS = (
    '"question": "Which \\"team\\"?", "options": {"A": "billing: money", "B": null}, '
    '"answer": "Answer with one letter."}'
)


@pytest.mark.parametrize(
    ("layout", "context", "before", "after"),
    [
        (
            "delimited",
            TEXT,
            '<context>\n"He said:\\n\\"late\\" <\\/context>"\n</context>\n\n',
            QUESTIONED,
        ),
        ("delimited", OBJECT, '<context>\n{"né": [1, null]}\n</context>\n\n', QUESTIONED),
        ("delimited", ARRAY, '<context>\n["a", {"b": true}]\n</context>\n\n', QUESTIONED),
        ("readable", TEXT, 'Context:\nHe said:\n"late" </context>\n\n', ASKED),
        ("readable", OBJECT, 'Context:\n{\n "né": [\n  1,\n  null\n ]\n}\n\n', ASKED),
        ("readable", ARRAY, 'Context:\n[\n "a",\n {\n  "b": true\n }\n]\n\n', ASKED),
        ("json", TEXT, '{"context": "He said:\\n\\"late\\" </context>"', f", {FIELDS}"),
        ("json", OBJECT, '{"context": {"né": [1, null]}', f", {FIELDS}"),
        ("json", ARRAY, '{"context": ["a", {"b": true}]', f", {FIELDS}"),
    ],
)
def test_the_context_is_before_and_the_question_after(layout, context, before, after):
    assert LAYOUTS[layout].before(context) == before
    assert LAYOUTS[layout].after(QUESTION) == after
    assert LAYOUTS[layout](context, QUESTION) == before + after
