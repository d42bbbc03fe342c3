"""A workflow cut by a tokenizer gives the tokens of full renders, whatever the context; or it is not cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import tiny
from encoders import LLAMA3, encoder_of, full, quoted, qwen_like, split_by, unsplit
from jevify import Choice, Noul, Score
from jevify.decide.compile import Limits, RequestCompiler
from jevify.decide.prompts import LAYOUTS
from jevify.errors import InputError
from jevify.models import catalog

pytestmark = pytest.mark.cpu
QUESTIONS = {
    "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical support": None}),
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad"]),
}
ONE = {"late": Noul(instructions="Is it late?")}
LIMITS = Limits(questions=32, question_tokens=10_000, context_length=20_000)


@pytest.fixture(scope="module")
def encoders():
    from jevify.models.lm.load import Checkpoint, load_tokenizer

    source = catalog.locate(catalog.DEFAULT_MODEL, None, False)
    tokenizers = {
        "tiny": tiny.tokenizer(),
        "llama3 template": tiny.tokenizer(tiny.LLAMA3),
        "llama3 words": split_by(LLAMA3),
        "qwen": qwen_like(),
        "smollm2": load_tokenizer(Checkpoint("smollm2", source.path_or_id, source.revision, True)),
    }
    return {
        (name, layout, encoding): encoder_of(tokenizer, layout, encoding)
        for name, tokenizer in tokenizers.items()
        for layout in LAYOUTS
        for encoding in ("letters", "labels")
    }


def outcome(make, *given):
    """What `make` gives, or what it says against it: a vocabulary may lack a character."""
    try:
        return make(*given)
    except InputError as error:
        return str(error)


NASTY = [
    "",
    " ",
    "\n",
    "\t ",
    "'s",
    "\u0301",
    "\u200d",
    "<",
    "</context>",
    "\\",
    '"',
    "日本",
    "\u00a0",
    "\r\n",
    "9",
    "é",
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("encoding", ["letters", "labels"])
@pytest.mark.parametrize("name", ["tiny", "llama3 template", "llama3 words", "qwen", "smollm2"])
def test_the_compiled_form_has_the_tokens_of_the_full_render(encoders, name, layout, encoding):
    encoder = encoders[name, layout, encoding]
    for questions in (QUESTIONS, ONE):
        compiler = RequestCompiler(encoder, LIMITS)
        for end in NASTY:
            for context in (f"It was late{end}", {"note": f"late{end}", "n": [1, None]}, [f"late{end}"]):
                request = compiler.compile(context, questions)
                assert request.compiled
                assert request.plan == full(encoder, context, questions)


# Contexts of any text, and of what tokenizers treat apart.
TEXTS = st.one_of(
    st.text(min_size=1), st.lists(st.sampled_from(["late", " ", "\n", "Question", *NASTY]), min_size=1).map("".join)
).filter(str.strip)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["tiny", "llama3 words", "qwen", "smollm2"])
def test_any_context_gives_the_tokens_of_the_full_render(encoders, name, layout):
    encoder = encoders[name, layout, "letters"]
    compiler = RequestCompiler(encoder, LIMITS)

    @given(st.one_of(TEXTS, st.lists(TEXTS, min_size=1), st.dictionaries(TEXTS, TEXTS, min_size=1)))
    @settings(max_examples=60, deadline=None)
    def check(context):
        found = outcome(compiler.compile, context, QUESTIONS)
        assert getattr(found, "plan", found) == outcome(full, encoder, context, QUESTIONS)

    check()


@pytest.mark.parametrize("instructions", ["\u0301 is a mark", "'s it late?", "  two spaces", "\n\nIs it?", "日本?"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_instructions_may_begin_with_what_joins_the_text_before(encoders, layout, instructions):
    questions = {"first": Noul(instructions=instructions), "second": Noul(instructions=instructions + " Truly?")}
    for name in ("qwen", "smollm2"):
        encoder = encoders[name, layout, "letters"]
        compiler = RequestCompiler(encoder, LIMITS)
        for context in ("It was late", "It was late\n", {"note": "e"}):
            assert compiler.compile(context, questions).plan == full(encoder, context, questions)


def test_a_tokenizer_without_a_place_to_cut_renders_in_full():
    encoder = encoder_of(unsplit())
    compiler = RequestCompiler(encoder, LIMITS)
    for context in ("late", "It was late again."):
        request = compiler.compile(context, QUESTIONS)
        assert not request.compiled
        assert request.plan == full(encoder, context, QUESTIONS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", [1, -1])
def test_what_one_question_alone_closes_is_found_in_any_order(layout, order):
    encoder = encoder_of(quoted(), layout)
    plain = [(f"plain {index}", Noul(instructions=f"Is it late {index}?")) for index in range(3)]
    questions = dict([("quoted", Noul(instructions='Is "it" late?')), *plain][::order])
    compiler = RequestCompiler(encoder, LIMITS)
    for context in ('he said "late', 'two "quotes"', {"note": 'an open "quote'}):
        request = compiler.compile(context, questions)
        assert not request.compiled
        assert request.plan == full(encoder, context, questions)


def test_a_vocabulary_that_lacks_what_only_probes_hold_serves_other_texts():
    whole = tiny.tokenizer()
    description = json.loads(whole.backend_tokenizer.to_str())
    del description["model"]["vocab"]["\u00f0"]  # how byte 0xF0, which begins an emoji, is written
    lacking = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(description)), eos_token="<|im_end|>"
    )
    lacking.chat_template = tiny.CHATML
    encoder = encoder_of(lacking)
    compiler = RequestCompiler(encoder, LIMITS)
    request = compiler.compile("A plain text.", QUESTIONS)
    assert request.compiled
    assert request.plan == full(encoder, "A plain text.", QUESTIONS)
    with pytest.raises(InputError, match=r"U\+1F680.*cannot read"):
        compiler.compile("A rocket 🚀", QUESTIONS)
