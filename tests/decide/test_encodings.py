"""Questions as prompt ids and answer paths."""

import unicodedata

import pytest

import tiny
from jevify.decide.chat import ChatEncoder
from jevify.decide.encodings import QuestionEncoder
from jevify.decide.questions import Choice, Noul, Score
from jevify.errors import InputError, UnsupportedModelError

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def encoder(tokenizer, encoding, layout="delimited", limit=64):
    chat = ChatEncoder(tokenizer, "m")
    return QuestionEncoder(chat, layout=layout, encoding=encoding, max_label_tokens=limit)


def choice(*labels):
    return Choice(instructions="Which?", criteria=list(labels))


def texts(tokenizer, paths):
    return [tokenizer.decode(path) for path in paths]


@pytest.mark.parametrize("layout", ["delimited", "readable", "json"])
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (choice("billing", "tech support", "other"), ["A", "B", "C"]),
        (Score(instructions="How bad?", criteria=["fine", "bad"]), ["A", "B"]),
        (Noul(instructions="Late?"), ["false", "true"]),
    ],
)
def test_letters_are_one_token_each(tokenizer, layout, question, expected):
    prompt, paths = encoder(tokenizer, "letters", layout).encode("q", "some context", question)
    assert all(len(path) == 1 for path in paths)
    assert texts(tokenizer, paths) == expected
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n")


def test_letters_are_not_the_tokens_after_a_space(tokenizer):
    _, paths = encoder(tokenizer, "letters").encode("q", "c", choice("a", "b"))
    assert [path[0] for path in paths] == tokenizer.convert_tokens_to_ids(["A", "B"])
    assert paths[0][0] != tokenizer.convert_tokens_to_ids("\u0120A")


def test_beyond_26_options_two_letter_tokens_are_verified(tokenizer):
    made = encoder(tokenizer, "letters")
    with pytest.raises(
        InputError, match=r"\$.questions.q: 27 options, but this model has only (\d+) single-token letters"
    ):
        made.encode("q", "c", choice(*map(str, range(27))))
    made._letters = None
    single = made._single_token(["AA", "AB", "QX"])
    assert single == ["AA", "AB"]
    assert len(made.encode("q", "c", choice(*map(str, range(26))))[1]) == 26


@pytest.mark.parametrize(
    "label", ["tech support", "naïve 🎉", "two\nlines", 'say "hi"', " leading", "<|im_end|>", "a.b"]
)
def test_labels_are_their_own_text(tokenizer, label):
    prompt, paths = encoder(tokenizer, "labels").encode("q", "c", choice(label, "other"))
    whole = tokenizer.decode(prompt + paths[0])
    assert whole.endswith("<|im_start|>assistant\n" + label)
    assert tokenizer.decode(prompt + paths[1]).endswith("assistant\nother")


def test_a_label_that_begins_another_appends_the_end_of_turn_to_all(tokenizer):
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    made = encoder(tokenizer, "labels")
    _, nested = made.encode("q", "c", choice("organism", "zebra", "organ"))
    assert all(path[-1] == end for path in nested)
    _, apart = made.encode("q", "c", choice("organism", "zebra"))
    assert not any(end in path for path in apart)


def test_score_levels_are_answered_by_number(tokenizer):
    levels = [f"level {index}" for index in range(11)]
    prompt, paths = encoder(tokenizer, "labels").encode("q", "c", Score(instructions="?", criteria=levels))
    end = "<|im_end|>"
    assert texts(tokenizer, paths) == [f"{index}{end}" for index in range(11)]  # "1" begins "10"
    assert "10: level 10" in tokenizer.decode(prompt)


def test_one_option(tokenizer):
    for encoding in ("letters", "labels"):
        _, paths = encoder(tokenizer, encoding).encode("q", "c", choice("only"))
        assert len(paths) == 1
        assert paths[0]


def test_255_labels(tokenizer):
    _, paths = encoder(tokenizer, "labels").encode("q", "c", choice(*(f"label number {index}" for index in range(255))))
    assert len(set(paths)) == 255


def test_a_long_label_is_refused_with_its_count(tokenizer):
    with pytest.raises(InputError, match=r"\$.questions.q: label 'a a a a a' takes (\d+) tokens, and the limit is 3"):
        encoder(tokenizer, "labels", limit=3).encode("q", "c", choice("a a a a a", "b"))


def test_labels_with_the_same_ids_are_refused(tokenizer):
    made = encoder(tokenizer, "labels")
    original = made._chat.encode_text
    made._chat.encode_text = lambda text, *_: original(text.lower())
    with pytest.raises(InputError, match="labels 'Refund' and 'refund' are the same tokens"):
        made.encode("q", "c", choice("Refund", "refund"))


def test_every_layout_puts_the_context_before_the_question(tokenizer):
    for layout in ("delimited", "readable", "json"):
        made = encoder(tokenizer, "letters", layout)
        first, _ = made.encode("q", "the shared context", choice("a", "b"))
        second, _ = made.encode("q", "the shared context", Noul(instructions="Is it late?"))
        shared = next(index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
        assert "the shared context" in tokenizer.decode(first[:shared])


def test_a_context_cannot_close_its_tag(tokenizer):
    prompt, _ = encoder(tokenizer, "letters").encode("q", 'x</context>"</context>', choice("a", "b"))
    assert tokenizer.decode(prompt).count("</context>") == 1


def test_descriptions_and_structured_contexts_are_shown(tokenizer):
    question = Choice(instructions="Which?", criteria={"billing": "money matters", "other": None})
    for layout in ("delimited", "readable", "json"):
        prompt, _ = encoder(tokenizer, "letters", layout).encode("q", {"order": 7, "note": None}, question)
        shown = tokenizer.decode(prompt)
        assert "money matters" in shown
        assert '"order": 7' in shown
        assert "null" in shown


def test_a_tokenizer_without_truth_tokens_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr(QuestionEncoder, "_single_token", lambda self, texts: [])
    with pytest.raises(UnsupportedModelError, match="no single tokens for false and true"):
        encoder(tokenizer, "letters")


def test_nesting_shows_in_tokens_too(tokenizer):
    """A tokenizer that normalizes can make one label begin another that its text does not begin."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    made = encoder(tokenizer, "labels")
    original = made._chat.encode_text
    made._chat.encode_text = lambda text, *_: original(unicodedata.normalize("NFC", text))
    _, paths = made.encode("q", "c", choice("e\u0301", "\u00e9a", "zebra"))
    assert paths[0][:-1] == paths[1][: len(paths[0]) - 1]
    assert all(path[-1] == end for path in paths)


def test_the_end_of_turn_does_not_count_against_the_limit(tokenizer):
    made = encoder(tokenizer, "labels", limit=1)
    _, paths = made.encode("q", "c", choice("t", "true"))
    assert [len(path) for path in paths] == [2, 2]


def test_odd_ids_are_quoted_in_errors(tokenizer):
    with pytest.raises(InputError, match=r'^\$\.questions\["a\.b"\]: label'):
        encoder(tokenizer, "labels", limit=1).encode("a.b", "c", choice("a a a", "b"))
