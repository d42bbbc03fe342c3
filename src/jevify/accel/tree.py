"""Packed rows of a token tree: shared prefixes, branches and leaf paths in one flat row of tokens.

A request is a tree of segments. A token sees its own segment causally and its ancestors whole; its position is its
depth. Packing keeps parents before children and siblings side by side. A tree larger than the token budget is run in
several passes: whatever later passes still need is carried over as key/value rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Sibling leaves share one attention call up to this many rows: enough to amortize the call, too few for their
# mutual mask to cost anything.
SIBLING_ROWS = 128

Span = tuple[int, int]


@dataclass(frozen=True)
class Segment:
    """A run of tokens below `parent` (a segment index, or None for a root); `start` is the depth of its first token."""

    tokens: tuple[int, ...]
    parent: int | None
    start: int


@dataclass(frozen=True)
class Block:
    """Query rows [start, stop) of one pass that share their ancestors.

    `ancestors` are ranges of key slots, root first, that every row sees whole. `segments` are the lengths of the
    sibling runs inside [start, stop): each sees itself causally and no other. Key slots are the carried rows
    followed by the rows of the pass.
    """

    start: int
    stop: int
    ancestors: tuple[Span, ...]
    segments: tuple[int, ...]


@dataclass(frozen=True)
class Pass:
    """One forward pass over T rows with C carried key/value rows.

    `token_ids` and `positions` have length T. `keep` lists the key slots (of C + T) that the next pass carries, in its
    slot order. `pieces` tell which tokens of which segment sit at which rows.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    carried: int
    blocks: tuple[Block, ...]
    keep: tuple[int, ...]
    pieces: tuple["Piece", ...]


@dataclass(frozen=True)
class Piece:
    """Tokens [offset, offset + length) of a segment, at rows [row, row + length) of a pass."""

    segment: int
    offset: int
    length: int
    row: int


@dataclass
class TokenTree:
    """A forest of token segments, grown with `add` and cut into passes with `passes`."""

    segments: list[Segment] = field(default_factory=list)

    def add(self, tokens: Sequence[int], parent: int | None = None) -> int:
        """Append a segment and return its index. Raises ValueError for an empty segment or an unknown parent."""
        if not tokens:
            raise ValueError("a segment needs at least one token")
        if parent is None:
            start = 0
        elif 0 <= parent < len(self.segments):
            start = self.segments[parent].start + len(self.segments[parent].tokens)
        else:
            raise ValueError(f"parent {parent} is not a segment of this tree of {len(self.segments)}")
        self.segments.append(Segment(tuple(tokens), parent, start))
        return len(self.segments) - 1

    def __len__(self) -> int:
        """Tokens in the tree."""
        return sum(len(segment.tokens) for segment in self.segments)

    def path(self, segment: int) -> list[int]:
        """Segment indices from the root down to `segment`, inclusive."""
        line = [segment]
        while (parent := self.segments[line[-1]].parent) is not None:
            line.append(parent)
        return line[::-1]

    def passes(self, budget: int) -> list[Pass]:
        """Cut the tree into passes of at most `budget` rows each.

        A segment that fits a pass is never cut; a longer one fills the pass at hand and goes on in the next. Raises
        ValueError for a budget below 1.
        """
        if budget < 1:
            raise ValueError(f"the token budget must be at least 1, not {budget}")
        groups = self._group(budget)
        last_use = self._last_use(groups)
        carried: list[Piece] = []  # row = slot among the carried keys
        result = []
        for index, pieces in enumerate(groups):
            packed, carried = self._pack(pieces, carried, last_use, index)
            result.append(packed)
        return result

    def _group(self, budget: int) -> list[list[Piece]]:
        groups: list[list[Piece]] = [[]]
        used = 0
        for index in self._depth_first():
            left, offset = len(self.segments[index].tokens), 0
            while left:
                if used == budget or (used and left <= budget and used + left > budget):
                    groups.append([])
                    used = 0
                length = min(left, budget - used)
                groups[-1].append(Piece(index, offset, length, used))
                used, offset, left = used + length, offset + length, left - length
        return [group for group in groups if group]

    def _depth_first(self) -> list[int]:
        children: dict[int | None, list[int]] = {}
        for index, segment in enumerate(self.segments):
            children.setdefault(segment.parent, []).append(index)
        order: list[int] = []
        stack = children.get(None, [])[::-1]
        while stack:
            index = stack.pop()
            order.append(index)
            stack.extend(children.get(index, [])[::-1])
        return order

    def _last_use(self, groups: list[list[Piece]]) -> dict[int, int]:
        """The last pass in which each segment is seen, by itself or by a descendant."""
        last: dict[int, int] = {}
        for number, pieces in enumerate(groups):
            for piece in pieces:
                for ancestor in self.path(piece.segment):
                    last[ancestor] = number
        return last

    def _pack(
        self, pieces: list[Piece], carried: list[Piece], last_use: dict[int, int], number: int
    ) -> tuple[Pass, list[Piece]]:
        count = sum(piece.length for piece in carried)
        slots: dict[int, list[Span]] = {}
        for piece in carried:
            slots.setdefault(piece.segment, []).append((piece.row, piece.row + piece.length))
        tokens: list[int] = []
        positions: list[int] = []
        blocks: list[Block] = []
        for piece in pieces:
            segment = self.segments[piece.segment]
            tokens += segment.tokens[piece.offset : piece.offset + piece.length]
            positions += range(segment.start + piece.offset, segment.start + piece.offset + piece.length)
            seen = [span for ancestor in self.path(piece.segment) for span in slots.get(ancestor, [])]
            _append(blocks, Block(piece.row, piece.row + piece.length, _joined(seen), (piece.length,)))
            begin = count + piece.row
            slots.setdefault(piece.segment, []).append((begin, begin + piece.length))
        keep: list[int] = []
        later: list[Piece] = []
        for piece, shift in [(piece, 0) for piece in carried] + [(piece, count) for piece in pieces]:
            if last_use[piece.segment] > number:
                later.append(Piece(piece.segment, piece.offset, piece.length, len(keep)))
                keep += range(piece.row + shift, piece.row + shift + piece.length)
        packed = Pass(tuple(tokens), tuple(positions), count, tuple(blocks), tuple(keep), tuple(pieces))
        return packed, later


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _append(blocks: list[Block], block: Block) -> None:
    """Append `block`, or let it share the last call when both are small siblings."""
    if blocks:
        last = blocks[-1]
        if block.ancestors and last.ancestors == block.ancestors and block.stop - last.start <= SIBLING_ROWS:
            blocks[-1] = Block(last.start, block.stop, last.ancestors, last.segments + block.segments)
            return
    blocks.append(block)
