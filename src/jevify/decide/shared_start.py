"""Tokenizing texts that begin alike without tokenizing their common start again."""

from bisect import bisect_left, bisect_right
from typing import Any


class SharedStart:
    """Encodes the texts of one request; drop it with the request, since it holds what they share.

    A text is cut where a pre-token of the first text begins with an ASCII character that is no space, inside what both
    have in common: a pre-tokenizer that reads left to right cuts there too, whatever follows. The first cut is
    checked against encoding the whole text; if it differs, no text is cut.
    """

    def __init__(self, plain: Any) -> None:
        """plain: a `tokenizers.Tokenizer` that adds nothing around a text."""
        self._plain = plain
        self._text = ""
        self._ids: list[int] = []
        self._cuts: list[tuple[int, int]] = []  # (character, token)
        self._proven = self._refuted = False

    def encode(self, text: str) -> list[int]:
        """Exactly the ids of encoding `text` alone."""
        if not self._text:
            return self._remember(text)
        position, token = self._cut(text)
        if self._refuted or not position:
            return self._whole(text)
        ids = self._ids[:token] + self._whole(text[position:])
        if self._proven:
            return ids
        whole = self._whole(text)
        self._proven, self._refuted = True, ids != whole
        return whole

    def _whole(self, text: str) -> list[int]:
        found: list[int] = self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return found

    def _remember(self, text: str) -> list[int]:
        encoding = self._plain.encode(text, add_special_tokens=False)
        self._text, self._ids = text, encoding.ids
        word = None
        for token, (found, (start, _)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if found != word and text[start].isascii() and not text[start].isspace():
                self._cuts.append((start, token))
            word = found
        return self._ids

    def _cut(self, text: str) -> tuple[int, int]:
        """The last usable cut, and the tokens before it; (0, 0) when there is none."""
        shortest = min(len(text), len(self._text))
        # The first length at which the texts differ, by bisection: comparing slices is fast.
        common = bisect_left(range(1, shortest + 1), True, key=lambda size: text[:size] != self._text[:size])
        index = bisect_right(self._cuts, (common - 2, len(self._ids))) - 1
        return self._cuts[index] if index >= 0 else (0, 0)
