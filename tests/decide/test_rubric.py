"""A workflow compiled once gives the tokens of full renders, whatever the context; where it cannot, it is not used."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import tiny
from jevify import Choice, Noul, Score
from jevify.decide.chat import ChatEncoder
from jevify.decide.compile import Limits, RequestCompiler
from jevify.decide.encodings import QuestionEncoder
from jevify.decide.plan import share_prefix
from jevify.decide.prompts import LAYOUTS, QuestionText
from jevify.errors import InputError
from jevify.models import catalog

pytestmark = pytest.mark.cpu
QUESTIONS = {
    "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical support": None}),
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad"]),
}
ONE = {"late": Noul(instructions="Is it late?")}
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LIMITS = Limits(questions=32, question_tokens=10_000, context_length=20_000)


def qwen_like():
    """A byte-level BPE with Qwen2's pre-tokenizer and NFC normalizer."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    texts = [
        "<context> </context> <question> Which team? true false A B C billing\n\n" * 3,
        'café "late"\n\n',
        "e\u0301",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts * 20 + ["true\nfalse\n"] * 50, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = tiny.CHATML
    return made


def unsplit():
    """A tokenizer whose merges reach over every boundary: it has no pre-tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    template = LAYOUTS["delimited"]
    whole = template.before("late") + template.after(QuestionText("Which team?", (("A", "x"),), "Answer"))
    bpe.train_from_iterator([whole, "true", "false", "A", "B"] * 50, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = tiny.CHATML
    return made


def encoder_of(tokenizer, layout="delimited", encoding="letters"):
    return QuestionEncoder(ChatEncoder(tokenizer, "test"), layout=layout, encoding=encoding, max_label_tokens=64)


@pytest.fixture(scope="module")
def tokenizers_by_name():
    from jevify.models.lm.load import Checkpoint, load_tokenizer

    source = catalog.locate(catalog.DEFAULT_MODEL, None, False)
    real = load_tokenizer(Checkpoint("smollm2", source.path_or_id, source.revision, True))
    return {"tiny": tiny.tokenizer(), "llama3": tiny.tokenizer(tiny.LLAMA3), "qwen": qwen_like(), "smollm2": real}


def full(encoder, context, questions):
    return share_prefix([encoder.encode(name, context, question) for name, question in questions.items()])


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
@pytest.mark.parametrize("name", ["tiny", "llama3", "qwen", "smollm2"])
def test_the_compiled_form_has_the_tokens_of_the_full_render(tokenizers_by_name, name, layout, encoding):
    encoder = encoder_of(tokenizers_by_name[name], layout, encoding)
    for questions in (QUESTIONS, ONE):
        compiler = RequestCompiler(encoder, LIMITS)
        for end in NASTY:
            for context in (f"It was late{end}", {"note": f"late{end}", "n": [1, None]}):
                request = compiler.compile(context, questions)
                assert request.compiled
                assert request.plan == full(encoder, context, questions)


@given(text=st.text(min_size=1).filter(str.strip))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("layout", ["delimited", "readable"])
def test_any_context_gives_the_tokens_of_the_full_render(tokenizers_by_name, layout, text):
    for name in ("qwen", "smollm2"):
        encoder = encoder_of(tokenizers_by_name[name], layout)
        compiler = RequestCompiler(encoder, LIMITS)
        found = outcome(compiler.compile, text, QUESTIONS)
        assert getattr(found, "plan", found) == outcome(full, encoder, text, QUESTIONS)


def test_branches_are_the_same_objects_for_every_context(tokenizers_by_name):
    compiler = RequestCompiler(encoder_of(tokenizers_by_name["tiny"]), LIMITS)
    first, second = (compiler.compile(text, QUESTIONS).plan for text in ("One text.", "Another, longer text."))
    assert first.branches is second.branches
    assert first.prefix != second.prefix


def test_a_tokenizer_without_a_place_to_cut_renders_in_full():
    encoder = encoder_of(unsplit())
    compiler = RequestCompiler(encoder, LIMITS)
    for context in ("late", "It was late again."):
        request = compiler.compile(context, QUESTIONS)
        assert not request.compiled
        assert request.plan == full(encoder, context, QUESTIONS)


@pytest.mark.parametrize("context", ["", "   ", None, 7, {}, [], "half \ud800 a pair", {"a": float("nan")}])
def test_a_known_workflow_lets_no_bad_context_through(tokenizers_by_name, context):
    compiler = RequestCompiler(encoder_of(tokenizers_by_name["tiny"]), LIMITS)
    with pytest.raises(InputError) as first:
        compiler.compile(context, QUESTIONS)
    compiler.compile("A good text.", QUESTIONS)
    with pytest.raises(InputError) as second:
        compiler.compile(context, QUESTIONS)
    assert str(first.value) == str(second.value)


def test_limits_hold_for_compiled_requests(tokenizers_by_name):
    encoder = encoder_of(tokenizers_by_name["tiny"])
    size = len(encoder.encode("late", "word " * 50, ONE["late"])[0])
    compiler = RequestCompiler(encoder, Limits(questions=2, question_tokens=size, context_length=size))
    assert compiler.compile("word " * 50, ONE).question_tokens == [size]
    with pytest.raises(InputError, match=rf"questions\.late: the full question is \d+ tokens, and the limit is {size}"):
        compiler.compile("word " * 51, ONE)
    with pytest.raises(InputError, match="3 questions, and the limit is 2"):
        compiler.compile("A text.", QUESTIONS)


def test_threads_compile_at_once(tokenizers_by_name):
    encoder = encoder_of(tokenizers_by_name["tiny"])
    compiler = RequestCompiler(encoder, LIMITS)
    wrong = []

    def work(number):
        for index in range(5):
            context = f"Text {number} {index}."
            if compiler.compile(context, QUESTIONS).plan != full(encoder, context, QUESTIONS):
                wrong.append(context)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
