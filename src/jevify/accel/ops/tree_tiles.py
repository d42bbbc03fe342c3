"""Which tile the token-tree attention kernel gets for a pass, and the tiles worth timing."""

from itertools import product

import torch

from jevify.accel.ops.tree_layout import Tile

# Largest first. The small ones are for passes of few rows, where programs that finish sooner and fill the processors
# are worth reading keys more often. Float32 multiplies without tensor cores, in registers.
TILES = (Tile(128, 64, 8, 3), Tile(64, 64, 4, 3), Tile(32, 64, 4, 3), Tile(16, 64, 4, 3))
TILES_FLOAT32 = (Tile(32, 32, 8, 1), Tile(16, 32, 4, 1))
# Paths of more tokens than this keep the large tile: the keys are then split over processors, not read more often.
SHORT_PATH = 1024
# Shared memory of one program on the smallest GPU the tiles are tuned for (compute capability 9.0).
SHARED_BYTES = 227 * 1024


def tile_for(
    rows: int,
    path: int,
    *,
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
    processors: int,
    specialize_short: bool = True,
) -> Tile:
    """The tile for a pass of `rows` query rows whose longest root-to-leaf path has `path` tokens.

    The largest tile that fills the GPU's `processors`, or the smallest; with specialize_short off, or long paths, the
    largest. A function of sizes only, so that a graph's key can hold it. Raises ValueError when the query heads of one
    key head fit no tile.
    """
    group = heads // kv_heads
    tiles = [tile for tile in _table(dtype) if tile.block_m >= group]
    if not tiles:
        raise ValueError(f"{group} query heads per key head fit no tile")
    if not specialize_short or path > SHORT_PATH:
        return tiles[0]
    return next((tile for tile in tiles if -(-rows // tile.rows(group)) * kv_heads >= processors), tiles[-1])


def _table(dtype: torch.dtype) -> tuple[Tile, ...]:
    return TILES_FLOAT32 if dtype == torch.float32 else TILES


def tunable_tiles(*, head_dim: int, group: int, dtype: torch.dtype) -> list[Tile]:
    """Tiles that fit `group` query heads and shared memory, for a timing run to choose from."""
    if dtype == torch.float32:
        choices = product((16, 32), (16, 32, 64), (4, 8), (1, 2))
    else:
        choices = product((16, 32, 64, 128), (32, 64, 128), (2, 4, 8), (2, 3, 4))
    return [
        Tile(block_m, block_n, warps, stages)
        for block_m, block_n, warps, stages in choices
        if block_m >= group
        # Two warps for the smallest tiles, eight for the largest, four for any.
        and (warps == 4 or dtype == torch.float32 or (warps == 2) == (block_m <= 32))
        and (block_m + 2 * stages * block_n) * head_dim * dtype.itemsize <= SHARED_BYTES
    ]
