"""Encoding what texts share once gives exactly the ids of encoding each alone."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

import tiny
from jevify.decide.shared_start import SharedStart

pytestmark = pytest.mark.cpu

# The published pre-tokenizer patterns of the three families.
PATTERNS = {
    "gpt2": None,
    "qwen": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def tokenizer(family):
    """The vocabulary of the tiny tokenizer, without added tokens, behind the pre-tokenizer of `family`."""
    made = Tokenizer.from_str(tiny.tokenizer().backend_tokenizer.to_str())
    plain = Tokenizer(models.BPE())
    plain.model = made.model
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=PATTERNS[family] is None)
    plain.pre_tokenizer = byte_level
    if PATTERNS[family]:
        split = pre_tokenizers.Split(Regex(PATTERNS[family]), behavior="isolated")
        plain.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        plain.normalizer = normalizers.NFC()
    return plain


PIECES = st.lists(
    st.sampled_from(
        [
            "the ",
            "customer",
            "'s",
            "'",
            " 12",
            "3456",
            "\n",
            "\n\n",
            "  ",
            "é",
            "e\u0301",
            "🎉",
            "(",
            ")",
            "</",
            ">",
            "x",
        ]
    ),
    max_size=14,
).map("".join)


@pytest.mark.parametrize("family", PATTERNS)
def test_ids_are_those_of_each_text_alone(family):
    plain = tokenizer(family)

    @settings(max_examples=400, deadline=None)
    @given(PIECES, st.lists(st.one_of(PIECES, st.text(max_size=12)), min_size=1, max_size=5))
    def check(start, ends):
        shared = SharedStart(plain)
        for end in ends:
            assert shared.encode(start + end) == plain.encode(start + end, add_special_tokens=False).ids
        assert not shared._refuted

    check()


def test_the_common_start_is_encoded_twice_at_most():
    plain = tokenizer("qwen")
    lengths = []

    class Counting:
        def encode(self, text, add_special_tokens):
            lengths.append(len(text))
            return plain.encode(text, add_special_tokens=add_special_tokens)

        def encode_batch_fast(self, texts, add_special_tokens):
            lengths.extend(map(len, texts))
            return plain.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    shared = SharedStart(Counting())
    for index in range(10):
        shared.encode("the customer asked for money back. " * 50 + f"question {index}")
    assert sum(length > 1000 for length in lengths) == 2
    assert max(lengths[3:]) < 50


class AddsAStart:
    """A tokenizer that puts a token before every text it is given, so that pieces cannot be joined."""

    def __init__(self, plain):
        self._plain = plain

    def encode(self, text, add_special_tokens):
        found = self._plain.encode(text, add_special_tokens=add_special_tokens)
        return SimpleNamespace(ids=[0, *found.ids], word_ids=[None, *found.word_ids], offsets=[(0, 0), *found.offsets])

    def encode_batch_fast(self, texts, add_special_tokens):
        return [self.encode(text, add_special_tokens) for text in texts]


def test_a_tokenizer_whose_pieces_cannot_be_joined_encodes_whole_texts():
    plain = AddsAStart(tokenizer("gpt2"))
    shared = SharedStart(plain)
    for end in ("one", "two", "three"):
        text = "the customer asked. " + end
        assert shared.encode(text) == plain.encode(text, add_special_tokens=False).ids
    assert shared._refuted
