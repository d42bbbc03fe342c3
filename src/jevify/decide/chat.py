"""Chat rendering whose text can never become control tokens.

The template is rendered once with marks in place of the texts. Its own special tokens become ids; texts are encoded
by a copy of the tokenizer that knows no added tokens, so that a context that spells `<|im_end|>` stays text.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from tokenizers.normalizers import NFC
from transformers.convert_slow_tokenizer import bytes_to_unicode

from jevify.decide.plan import Tokens
from jevify.errors import InputError, UnsupportedModelError

_SYSTEM, _USER, _ASSISTANT = "JEVIFYSYSTEMMARK", "JEVIFYUSERMARK", "JEVIFYASSISTANTMARK"
# A prompt must not depend on the day; Llama 3 templates print this date unless told otherwise.
_TEMPLATE_OPTIONS = {"enable_thinking": False, "date_string": "26 Jul 2024"}
# Characters of a text that is worth a look before it is tokenized.
_LONG = 65_536
# NFC makes at most four characters one: a Greek letter and its three marks.
_MOST_COMPOSED = 4
_PROBE = ("Be brief.", "Hello, world!\nIt's 12:45 - naïve café, 100% fine?")

_Piece = str | int


class ChatEncoder:
    """Encodes one system text and one user text as a chat that ends where the assistant's answer begins.

    Raises UnsupportedModelError at construction, naming `name`, when the tokenizer is not a fast one, has no chat
    template or no end-of-turn token, drops a text, opens a thinking block that cannot be turned off, or when encoding
    by pieces does not give exactly the ids of the whole rendering.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._name = name
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise self._refused("its tokenizer has no fast version")
        if not tokenizer.chat_template:
            raise self._refused("its tokenizer has no chat template")
        if tokenizer.eos_token_id is None and tokenizer.pad_token_id is None:
            raise self._refused("its tokenizer has neither a pad nor an end-of-sequence token")
        self._tokenizer = tokenizer
        self._added = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) or r"(?!)")
        self._plain = _without_added_tokens(backend)
        self._missing_bytes = _missing_bytes(self._plain)
        self._head, self._middle, self._tail = self._template_pieces()
        self.end_of_turn = self._end_of_turn()
        self._check_tail()
        self._check_probe()

    def encode(self, system: str, user: str, answers: Sequence[str] = ()) -> tuple[Tokens, list[Tokens]]:
        """Ids of the rendered chat, and of the same chat continued by each of `answers`. All texts stay text.

        A continuation need not extend the ids of the chat: the tokenizer may join its first characters to the
        template's last ones. Raises InputError for a character that the vocabulary cannot express: it would be dropped.
        """
        start, text = self.opening(system)
        ids, full = self.closing(text + user, answers)
        return start + ids, [start + continued for continued in full]

    def opening(self, system: str) -> tuple[Tokens, str]:
        """Ids of what comes before the stretch of text that holds the user's, and how that stretch begins."""
        return self._run((*self._head, system, *self._middle))

    def closing(self, text: str, answers: Sequence[str] = ()) -> tuple[Tokens, list[Tokens]]:
        """Ids of `text`, the last part of the user's, with all that follows it, and of each continuation."""
        ids, rest = self._run(self._tail, text)
        return ids + self.encode_text(rest), [ids + self.encode_text(rest + answer) for answer in answers]

    def _run(self, pieces: Sequence[_Piece], text: str = "") -> tuple[Tokens, str]:
        """Ids of `text` and `pieces` up to the last control token, and the text after it."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
                continue
            ids += self.encode_text(text)
            ids.append(piece)
            text = ""
        return tuple(ids), text

    def encode_text(self, text: str) -> Tokens:
        """Ids of a stretch of plain text. Raises InputError as `encode` does."""
        self.check_text(text)
        return self.encode_texts([text])[0] if text else ()

    def encode_texts(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of stretches of plain text that were checked, on as many threads as the tokenizer takes."""
        # A batch also for one, because only batches can do without the offsets, which cost more than the tokens.
        return [tuple(found.ids) for found in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def check_text(self, text: str) -> None:
        """Raise InputError for a character that the vocabulary cannot express: it would be dropped."""
        missing = self._missing_bytes and self._missing_bytes.intersection(text.encode())
        for character in text if missing else "":
            if self._missing_bytes.intersection(character.encode()):
                raise InputError(
                    f"the text holds {character!r} (U+{ord(character):04X}), which {self._name} cannot read: "
                    "its vocabulary has no token for it; remove it"
                )

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` surely has, found without tokenizing it; 0 for what is quickly tokenized."""
        if len(text) < _LONG or self._longest_token is None:
            return 0
        return len(text) // (_MOST_COMPOSED * self._longest_token)

    @cached_property
    def _longest_token(self) -> int | None:
        """Bytes of the longest token of a byte-level vocabulary, whose tokens hold every byte; None for other ones."""
        lossless = self._plain.normalizer is None or isinstance(self._plain.normalizer, NFC)
        return max(map(len, self._plain.get_vocab())) if lossless and '"ByteLevel"' in self._plain.to_str() else None

    def word_starts(self, text: str) -> list[int]:
        """Where in `text` a pre-token begins with an ASCII character that is no space, ascending."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        starts, word = [], None
        for found, (start, _) in zip(encoding.word_ids, encoding.offsets, strict=True):
            if found != word and text[start].isascii() and not text[start].isspace():
                starts.append(start)
            word = found
        return starts

    def _render(self, messages: list[dict[str, str]], *, generation: bool, tokenize: bool = False) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tokenize=tokenize,
                add_generation_prompt=generation,
                **({"return_dict": False} if tokenize else {}),
                **_TEMPLATE_OPTIONS,
            )
        except Exception as error:  # Templates raise whatever their author chose.
            raise self._refused(f"its chat template fails on a system and a user message ({error})") from error

    def _template_pieces(self) -> tuple[list[_Piece], list[_Piece], list[_Piece]]:
        rendered = self._render(_chat(_SYSTEM, _USER), generation=True)
        parts = re.split(f"{_SYSTEM}|{_USER}", rendered)
        if len(parts) != 3 or rendered.index(_SYSTEM) > rendered.index(_USER):
            raise self._refused("its chat template does not place the system and the user text once each, in order")
        head, middle, tail = (self._split(part) for part in parts)
        return head, middle, tail

    def _split(self, text: str) -> list[_Piece]:
        """Template text as alternating plain text and ids of its added tokens."""
        pieces: list[_Piece] = []
        end = 0
        for match in self._pattern.finditer(text):
            pieces += [text[end : match.start()], self._added[match.group()]]
            end = match.end()
        return [piece for piece in [*pieces, text[end:]] if piece != ""]

    def _end_of_turn(self) -> int:
        messages = [*_chat(_SYSTEM, _USER), {"role": "assistant", "content": _ASSISTANT}]
        rendered = self._render(messages, generation=False)
        after = self._split(rendered.partition(_ASSISTANT)[2])
        for piece in after:
            if isinstance(piece, int):
                return piece
        if self._tokenizer.eos_token_id is None:
            raise self._refused("its chat template ends a turn with no token, and it has no end-of-sequence token")
        return int(self._tokenizer.eos_token_id)

    def _check_tail(self) -> None:
        rendered = self._render(_chat(_SYSTEM, _USER), generation=True).partition(_USER)[2]
        if rendered.count("<think>") > rendered.count("</think>"):
            raise self._refused("its chat template opens a thinking block that cannot be turned off")

    def _check_probe(self) -> None:
        whole = self._render(_chat(*_PROBE), generation=True, tokenize=True)
        if not isinstance(whole, list) or not all(isinstance(id, int) for id in whole):
            raise self._refused("its chat template gives no flat list of token ids")
        if tuple(whole) != self.encode(*_PROBE)[0]:
            raise self._refused(
                "its tokenizer does not encode a text between control tokens as it encodes the whole chat"
            )

    def _refused(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._name} cannot be used: {reason}")


def _chat(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _without_added_tokens(backend: Any) -> Tokenizer:
    description = json.loads(backend.to_str())
    description.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(description))


def _missing_bytes(plain: Tokenizer) -> frozenset[int]:
    """Byte values without a token in a byte-level vocabulary, which the tokenizer would drop silently."""
    if '"ByteLevel"' not in plain.to_str():
        return frozenset()
    vocabulary = plain.get_vocab()
    return frozenset(byte for byte, shown in bytes_to_unicode().items() if shown not in vocabulary)
