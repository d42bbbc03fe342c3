"""What the timing script makes of its measurements."""

import importlib.util
from pathlib import Path

import pytest

from jevify.accel.ops.linear import LinearTile

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def tune():
    path = Path(__file__).parents[2] / "scripts" / "tune_linear.py"
    spec = importlib.util.spec_from_file_location("tune_linear", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_fastest_way_is_kept_where_it_is_materially_faster(tune):
    tile = "[64, 64, 128, 2, 4, 4]"
    times = [
        (16, {"library": 6.0, tile: 5.0}),
        (32, {"library": 6.0, tile: 5.1, "lt": 5.2}),
        (64, {"library": 6.0, tile: 5.9}),
        (96, {"library": 6.0, tile: 7.0, "swapped": 5.0}),
    ]
    points = [{"rows": rows, "microseconds": timed} for rows, timed in times]
    assert tune.table_of({"2048x1536": points}) == {
        "2048x1536": [[32, [64, 64, 128, 2, 4, 4]], [64, "library"], [96, "swapped"]]
    }


def test_a_product_that_time_did_not_reach_keeps_its_entry(tune):
    points = [{"rows": 16, "microseconds": {"library": 6.0}}]
    assert tune.table_of({"2048x1536": points, "1536x8960": []}) == {"2048x1536": [[16, "library"]]}


def test_every_tile_fits_and_small_products_split(tune):
    for outputs, _, _ in tune.PRODUCTS:
        tiles = tune.tiles(outputs)
        assert len(set(tiles)) == len(tiles) > 6
        assert all(tile.shared_bytes(2) <= 227 * 1024 for tile in tiles)
    assert {tile.split for tile in tune.tiles(17_920)} == {1}
    assert {tile.split for tile in tune.tiles(1_536)} == {1, 2, 4, 8}
    # Four reads of the weight are too many, and so is a tile that is mostly padding.
    assert not tune.worthwhile(LinearTile(16, 64, 128, 4, 4, 4), 128, 1_536)
    assert not tune.worthwhile(LinearTile(128, 64, 64, 4, 4, 4), 16, 1_536)
    assert tune.worthwhile(LinearTile(64, 64, 128, 4, 4, 4), 128, 1_536)
