"""The choice of a tile."""

import pytest
import torch

from jevify.accel.ops.tree_tiles import TILES, TILES_FLOAT32, tile_for, tunable_tiles

pytestmark = pytest.mark.cpu
QWEN = {"heads": 12, "kv_heads": 2, "dtype": torch.bfloat16, "processors": 132}


@pytest.mark.parametrize(
    ("rows", "path", "block_m"), [(4640, 4080, 128), (2490, 330, 128), (400, 190, 32), (150, 150, 16)]
)
def test_few_rows_get_a_small_tile(rows, path, block_m):
    assert tile_for(rows, path, **QWEN).block_m == block_m
    assert tile_for(rows, path, specialize_short=False, **QWEN) == TILES[0]


def test_few_rows_behind_a_long_path_keep_the_large_tile():
    assert tile_for(64, 4000, **QWEN) == TILES[0]


def test_many_query_heads_per_key_head_need_a_tile_that_holds_them():
    options = {"kv_heads": 1, "dtype": torch.bfloat16, "processors": 132}
    assert tile_for(4, 9, heads=40, **options).block_m == 64
    with pytest.raises(ValueError, match="fit no tile"):
        tile_for(4, 9, heads=129, **options)


def test_float32_has_tiles_of_its_own():
    assert tile_for(4640, 4080, **{**QWEN, "dtype": torch.float32}) == TILES_FLOAT32[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_the_tunable_tiles_hold_the_defaults(dtype, head_dim):
    found = tunable_tiles(head_dim=head_dim, group=6, dtype=dtype)
    assert set(TILES_FLOAT32 if dtype == torch.float32 else TILES) <= set(found)
