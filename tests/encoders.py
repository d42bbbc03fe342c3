"""Question encoders over small tokenizers with the pre-tokenizers of the model families, and full renders by them."""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import tiny
from jevify.decide.chat import ChatEncoder
from jevify.decide.encodings import QuestionEncoder
from jevify.decide.plan import share_prefix
from jevify.decide.prompts import LAYOUTS, QuestionText

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As published.
QWEN, LLAMA3 = _WORDS.replace("NUMBERS", ""), _WORDS.replace("NUMBERS", "{1,3}")


def split_by(pattern, normalizer=None, more=()):
    """A byte-level BPE behind a pre-tokenizer of `pattern`, trained on `more` too."""
    texts = [
        "<context> </context> <question> Which team? true false A B C billing\n\n" * 3,
        'café "late"\n\n',
        "e\u0301",
    ]
    bpe = Tokenizer(models.BPE())
    if normalizer:
        bpe.normalizer = normalizer
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _trained(bpe, [*texts, *more] * 20 + ["true\nfalse\n"] * 50, 600)


def quoted():
    """Of no family: what a context leaves open decides how the question behind it is cut."""
    return split_by(
        r'"[^"]*"|\w+|\s+|[^\w\s]',
        more=['"\n</context>\n\n<question>\nIs "', '"\n\nQuestion: Is "', '"]", "question": "', '": "'] * 10,
    )


def qwen_like():
    """With Qwen2's pre-tokenizer and NFC normalizer."""
    return split_by(QWEN, normalizers.NFC())


def unsplit():
    """A tokenizer whose merges reach over every boundary: it has no pre-tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    layout = LAYOUTS["delimited"]
    whole = layout.before("late") + layout.after(QuestionText("Which team?", (("A", "x"),), "Answer"))
    return _trained(bpe, [whole, "true", "false", "A", "B"] * 50, 900)


def _trained(bpe, texts, size):
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = tiny.CHATML
    return made


def encoder_of(tokenizer, layout="delimited", encoding="letters"):
    """An encoder on `tokenizer`."""
    return QuestionEncoder(ChatEncoder(tokenizer, "test"), layout=layout, encoding=encoding, max_label_tokens=64)


def full(encoder, context, questions):
    """The plan by full renders: what every compiled request must equal."""
    return share_prefix([encoder.encode(name, context, question) for name, question in questions.items()])
