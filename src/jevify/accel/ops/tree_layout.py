"""The work list of the token-tree attention kernel: query tiles and the key ranges they walk, in one int32 table.

Packing is depth first, so one number per key says who sees it: key row s is visible to query row r exactly when
s <= r < ends[s], where ends[s] closes the subtree of the key's segment. A query tile may therefore hold rows of several
siblings, or of a branch and its leaves, and still share one walk over the keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from jevify.accel.tree import Block, Pass, Span

Table = npt.NDArray[np.int32]

# Columns of a work item: query rows [start, stop); ancestors spans[lo:mid] of carried keys and spans[mid:hi] of the
# keys of the pass, each numbered from its own zero; then keys [local, stop) of the pass, those below `whole` seen by
# every row of the tile. The item walks keys [first, last) of that concatenation, and writes the output (part -1) or
# partial `part`.
ITEM = ("start", "stop", "lo", "mid", "hi", "local", "whole", "first", "last", "part")
# Columns of a merge: query rows [start, stop) are the combination of partials [part, part + count).
MERGE = ("start", "stop", "part", "count")
# A tile may cross into the next sibling when that costs at most this many unseen keys, or half of those it then shares.
LOCAL = 64
# Splitting the keys pays for its second pass only from this many chunks a part.
LEAST_CHUNKS = 4
# Section sizes are rounded up to this, so that similar requests have one shape and every section stays 16-byte aligned.
STEP = 16


@dataclass(frozen=True)
class Tile:
    """Compile-time shape of the kernel: block_m query heads x rows against block_n keys at a time."""

    block_m: int
    block_n: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n"):
            size = getattr(self, name)
            if size < 16 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two of at least 16, not {size}")
        if self.warps not in (1, 2, 4, 8) or self.stages < 1:
            raise ValueError(f"a tile needs 1, 2, 4 or 8 warps and at least one stage: {self}")

    def rows(self, group: int) -> int:
        """Query rows of a tile when `group` query heads share a key head. Raises ValueError when not even one fits."""
        if group > self.block_m:
            raise ValueError(f"{group} query heads per key head do not fit a tile of {self.block_m}")
        return self.block_m // group


@dataclass(frozen=True)
class LayoutShape:
    """All that a captured graph fixes: two layouts of one shape differ in the table's contents only.

    rows: query rows, padding included. carried: carried key rows. tile_rows: query rows of a tile. items, spans, parts,
    merges: capacities.
    """

    rows: int
    carried: int
    tile: Tile
    tile_rows: int
    items: int
    spans: int
    parts: int
    merges: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Integers of the table's sections: items, spans, ends, merges."""
        return len(ITEM) * self.items, 2 * self.spans, -(-self.rows // STEP) * STEP, len(MERGE) * self.merges

    def sections(self, table: Tensor) -> Sequence[Tensor]:
        """Views of a table: items [10, items], spans [2, spans], ends [rows rounded up], merges [4, merges]."""
        items, spans, ends, merges = table.split(self.sizes)
        return items.view(len(ITEM), self.items), spans.view(2, self.spans), ends, merges.view(len(MERGE), self.merges)


@dataclass(frozen=True)
class TreeLayout:
    """A table of int32 and its shape; the table may live on the host or on a device, at 16-byte alignment."""

    table: Tensor
    shape: LayoutShape

    @cached_property
    def sections(self) -> Sequence[Tensor]:
        """The table's sections, see LayoutShape; viewed once for all layers."""
        return self.shape.sections(self.table)

    def to(self, device: torch.device | str) -> "TreeLayout":
        """The layout on `device`, in one copy. A graph's owner copies `table` into a buffer of its own instead."""
        return replace(self, table=self.table.to(device, non_blocking=True))


def plan_layout(
    step: Pass,
    tile: Tile,
    *,
    heads: int,
    kv_heads: int,
    processors: int = 0,
    rows: int | None = None,
    slack: int = STEP,
) -> TreeLayout:
    """Lay out one pass of `TokenTree.passes` for `heads` query heads over `kv_heads` key heads.

    processors: when the pass has fewer programs than this, long key ranges are split and merged in a second launch;
    0 never splits. rows: query rows including padding at the end (default: those of the pass); padding rows attend to
    nothing and come out zero. slack: a multiple of STEP; section sizes beyond what `rows` alone need are rounded up to
    it, so that with a large one nearly all passes of as many rows have one shape and a captured graph can replay them;
    a spare item costs a program that leaves at once. The table is on the host.
    """
    count = len(step.token_ids)
    rows = count if rows is None else rows
    if rows < count:
        raise ValueError(f"{count} rows do not fit a layout of {rows}")
    runs, spans = _runs(step.blocks, step.carried, count)
    per_tile = tile.rows(heads // kv_heads)
    padding = _padding(count, rows, per_tile)
    items, merges, parts = _split(_items(runs, per_tile, count), kv_heads, processors, tile.block_n)
    used, full = items.shape[1], -(-rows // per_tile)
    sizes = (used + padding.shape[1], len(spans), parts, merges.shape[1])
    shape = LayoutShape(
        rows,
        step.carried,
        tile,
        per_tile,
        _rounded(full + _rounded(max(sizes[0] - full, 1), slack), STEP),
        _rounded(max(sizes[1], 1), slack),
        *(_rounded(size, slack) for size in sizes[2:]),
    )
    table = np.zeros(sum(shape.sizes), np.int32)
    ends = len(ITEM) * shape.items + 2 * shape.spans
    item_part = table[: len(ITEM) * shape.items].reshape(len(ITEM), -1)
    item_part[:, :used] = items
    item_part[:, used : sizes[0]] = padding
    if spans:
        table[len(ITEM) * shape.items : ends].reshape(2, -1)[:, : len(spans)] = np.array(spans, np.int32).T
    table[ends : ends + count] = np.repeat(runs[:, _END], runs[:, _STOP] - runs[:, _START])
    if merges.shape[1]:
        table[-shape.sizes[3] :].reshape(len(MERGE), -1)[:, : merges.shape[1]] = merges
    return TreeLayout(torch.from_numpy(table), shape)


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


# Columns of a run, a segment's rows in the pass. A tile inside the run walks the spans at OWN (their LO, MID, HI and
# number of keys); one that crosses runs walks those at SHARED, which its cluster shares, and then from TOP, the row
# where the run's subtree inside the cluster starts.
_START, _STOP, _END, _TOP, _CLUSTER, _OWN, _SHARED = 0, 1, 2, 3, 4, 5, 9


def _runs(blocks: Sequence[Block], carried: int, count: int) -> tuple[Table, list[Span]]:
    """One row per segment of the pass, and the table of ancestor spans, carried ones first within each list.

    A cluster is a stretch of runs below one parent that tiles may cross. It never crosses roots: a hidden key weighs
    zero, and zero times another request's infinity is not zero.
    """
    runs: list[list[int]] = []
    spans: list[Span] = []
    open_runs: list[int] = []
    base: tuple[Span, ...] = ((-1, -1),)
    known: tuple[Span, ...] | None = None
    own = shared = (0, 0, 0, 0)
    top = cluster = 0
    for block in blocks:
        ancestors, start = block.ancestors, block.start
        if ancestors != known:
            known, own = ancestors, _add(spans, ancestors, carried)
        if not ancestors or start - top > max(LOCAL, shared[3] // 2) or not _below(ancestors, base):
            base, cluster, shared = ancestors, start, own
        direct = ancestors == base
        parent = ancestors[-1][1] - carried if ancestors else 0
        for length in block.segments:
            while open_runs and runs[open_runs[-1]][_STOP] != parent:
                runs[open_runs.pop()][_END] = start
            if direct:
                top = start
            open_runs.append(len(runs))
            stop = start + length
            runs.append([start, stop, count, top, cluster, *own, *shared])
            start = stop
    return np.array(runs, np.int32).reshape(-1, _SHARED + 4), spans


def _add(spans: list[Span], ancestors: Sequence[Span], carried: int) -> tuple[int, int, int, int]:
    """Append the ancestors, carried ones first; return their LO, MID, HI and number of keys."""
    lo = len(spans)
    spans += [(start, min(stop, carried)) for start, stop in ancestors if start < carried]
    mid = len(spans)
    spans += [(max(start - carried, 0), stop - carried) for start, stop in ancestors if stop > carried]
    return lo, mid, len(spans), sum(stop - start for start, stop in ancestors)


def _below(ancestors: tuple[Span, ...], base: tuple[Span, ...]) -> bool:
    """Whether rows that see `ancestors` see all of `base`, the keys of a node and of its own ancestors."""
    if ancestors == base or not base:
        return True
    last = len(base) - 1
    return (
        len(ancestors) > last
        and ancestors[:last] == base[:last]
        and ancestors[last][0] == base[last][0]
        and ancestors[last][1] >= base[last][1]
    )


def _items(runs: Table, per_tile: int, count: int) -> Table:
    """Tiles of every cluster in the order of their rows, unsplit. Returns [10, tiles]."""
    if not count:
        return np.empty((len(ITEM), 0), np.int32)
    begins = runs[:, _START]
    clusters = begins[begins == runs[:, _CLUSTER]]
    stops = np.append(clusters[1:], count)
    tiles = -(-(stops - clusters) // per_tile)
    offset = np.arange(tiles.sum()) - np.repeat(tiles.cumsum() - tiles, tiles)
    items = np.empty((len(ITEM), len(offset)), np.int32)
    start, stop, _, _, _, local, whole, first, last, part = items
    start[:] = np.repeat(clusters, tiles) + offset * per_tile
    np.minimum(start + per_tile, np.repeat(stops, tiles), out=stop)
    run = runs[begins.searchsorted(start, "right") - 1].T
    inside = stop <= run[_STOP]
    walk = np.where(inside, run[_OWN : _OWN + 4], run[_SHARED : _SHARED + 4])
    items[2:5] = walk[:3]
    local[:] = np.where(inside, run[_START], run[_TOP])
    whole[:] = np.where(inside, start, local)
    first[:] = 0
    last[:] = walk[3] + stop - local
    part[:] = -1
    return items


def _split(items: Table, kv_heads: int, processors: int, block_n: int) -> tuple[Table, Table, int]:
    """Cut long walks in parts when they leave processors idle; otherwise start the longest first."""
    none = np.zeros((len(MERGE), 0), np.int32)
    walks = items[ITEM.index("last")]
    if not processors or not len(walks):
        return items, none, 0
    if len(walks) * kv_heads >= processors:
        return items[:, np.argsort(-walks, kind="stable")], none, 0
    chunks = int((-(-walks // block_n)).sum()) * kv_heads
    size = max(LEAST_CHUNKS, -(-chunks // processors)) * block_n
    counts = -(-walks // size)
    total = int(counts.sum())
    if total == len(walks):
        return items, none, 0
    within = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
    many = counts > 1
    split = np.repeat(items, counts, axis=1)
    split[ITEM.index("first")] = within * size
    np.minimum(within * size + size, split[ITEM.index("last")], out=split[ITEM.index("last")])
    partial = np.repeat(many, counts)
    parts = int(partial.sum())
    split[ITEM.index("part"), partial] = np.arange(parts)
    counts = counts[many]
    merges = np.stack((items[0, many], items[1, many], counts.cumsum() - counts, counts)).astype(np.int32)
    return split, merges, parts


def _padding(count: int, rows: int, per_tile: int) -> Table:
    """Items without keys for the rows after the last real one."""
    if count == rows:
        return np.empty((len(ITEM), 0), np.int32)
    start = np.arange(count, rows, per_tile)
    items = np.zeros((len(ITEM), len(start)), np.int32)
    items[0], items[1] = start, np.minimum(start + per_tile, rows)
    items[ITEM.index("local")] = items[ITEM.index("whole")] = items[1]
    items[ITEM.index("part")] = -1
    return items
