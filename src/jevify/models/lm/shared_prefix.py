"""Branches on transformers' modules that read the prefix where it lies instead of in a copy for each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from jevify.accel.tree import Block, Pass
from jevify.models.lm.attention import Attend


class SharedPrefix:
    """Tells the attention adapters of a `Fusion` which prefix the rows at hand continue, while branches run."""

    def __init__(self) -> None:
        self._attend: Attend | None = None
        self._rows: Tensor | None = None

    @property
    def active(self) -> bool:
        """Whether branches run."""
        return self._attend is not None

    @contextmanager
    def over(self, attend: Attend, rows: Tensor) -> Iterator[None]:
        """Inside the block, layers attend with `attend` to the prefix `rows` [layers, 2, Hkv, P, D] and themselves."""
        self._attend, self._rows = attend, rows
        try:
            yield
        finally:
            self._attend = self._rows = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attention of the rows of all branches, q [B W, Hq, D], to the prefix of `layer` and to their own branch."""
        assert self._attend is not None
        assert self._rows is not None
        keys, values = self._rows[layer].transpose(1, 2)
        return self._attend(q, k, v, (keys, values), scale)


def branch_pass(rows: Sequence[Sequence[int]], seen: int) -> Pass:
    """`rows` of equal width behind a prefix of `seen` carried tokens, as a pass of the token tree."""
    width = len(rows[0])
    blocks = tuple(Block(start, start + width, ((0, seen),), (width,)) for start in range(0, len(rows) * width, width))
    tokens = tuple(token for row in rows for token in row)
    return Pass(tokens, tuple(range(seen, seen + width)) * len(rows), seen, blocks, (), ())
