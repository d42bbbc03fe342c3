"""How errors are told."""

import pytest

from jevify.cli.output import tell

pytestmark = pytest.mark.cpu


@pytest.fixture
def told(capsys):
    def call(message):
        tell(message)
        return capsys.readouterr().err

    return call


def test_each_problem_is_a_line(told):
    assert told("one\ntwo \x1b[31m") == "jevify: one\njevify: two \\x1b[31m\n"


def test_a_long_text_is_cut_inside_its_quotes(told):
    for quote in "\"'":
        line = told(f"the model's $.criteria[{quote}{'a b ' * 200}{quote}]: is too long: shorten it")
        kept = ("a b " * 200)[:199]
        assert line == f"jevify: the model's $.criteria[{quote}{kept}…{quote}]: is too long: shorten it\n"


def test_a_long_word_is_cut_and_a_long_sentence_is_not(told):
    assert told(f"$.{'x' * 300}: no") == f"jevify: $.{'x' * 198}… no\n"
    sentence = 'the "first" label isn\'t ' * 40
    assert told(sentence) == f"jevify: {sentence}\n"
    assert len(told('"label", ' * 10_000)) < 2_100


def test_escaped_quotes_end_no_text(told):
    assert told(f'"{"x" * 150}\\"{"y" * 150}" is bad') == f'jevify: "{"x" * 150}\\"{"y" * 47}…" is bad\n'


def test_many_problems_are_counted(told):
    lines = told("\n".join(f"problem {number}" for number in range(1, 101))).splitlines()
    assert lines[:20] == [f"jevify: problem {number}" for number in range(1, 21)]
    assert lines[20:] == ["jevify: … and 80 more problems"]
    assert "more" not in told("\n".join(["problem"] * 20))
