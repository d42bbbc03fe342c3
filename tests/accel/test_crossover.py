"""The measured map of where the kernel wins."""

from pathlib import Path

import pytest

from jevify.accel.crossover import SHIPPED, CrossoverMap, Point, read_maps, write_map
from jevify.errors import InputError

pytestmark = pytest.mark.cpu

POINTS = [
    Point(16, 1, 8, kernel_us=10, calls_us=5, behind_us=10, repeat_us=20),
    Point(1024, 1, 8, kernel_us=10, calls_us=30, behind_us=10, repeat_us=9),
    Point(1024, 28, 8, kernel_us=10, calls_us=10),
    Point(16, 28, 256, behind_us=3, repeat_us=2),
]


def test_the_nearest_point_by_logarithms_decides():
    found = CrossoverMap(POINTS, "measured on x")
    assert not found.prefers_kernel(16, 1, 8)
    # 128 is as far from 16 as from 1,024 by the logarithm.
    assert not found.prefers_kernel(120, 1, 8)
    assert found.prefers_kernel(140, 1, 8)
    # A tie is the kernel's.
    assert found.prefers_kernel(4096, 20, 10)
    # Zero counts as one.
    assert not found.prefers_kernel(0, 1, 1)


def test_each_thing_replaced_has_its_own_answer():
    found = CrossoverMap(POINTS, "x")
    assert found.prefers_kernel(16, 1, 8, instead_of="repeat")
    assert not found.prefers_kernel(1024, 1, 8, instead_of="repeat")
    # Only repeated caches were measured there: the calls are judged by the nearest point that has them.
    assert not found.prefers_kernel(16, 28, 256, instead_of="repeat")
    assert CrossoverMap(POINTS[3:], "x").prefers_kernel(16, 28, 256, instead_of="calls")


def test_the_first_file_with_the_device_wins(tmp_path: Path):
    own, shipped = tmp_path / "folder" / "own.json", tmp_path / "shipped.json"
    write_map(shipped, "A", POINTS[:1])
    write_map(shipped, "B", POINTS[1:2])
    files = (own, shipped)
    assert CrossoverMap.of("A", files).source == "measured on A"
    assert not CrossoverMap.of("A", files).prefers_kernel(16, 1, 8)
    write_map(own, "A", POINTS[1:])
    assert CrossoverMap.of("A", files).prefers_kernel(16, 1, 8)
    assert CrossoverMap.of("B", files).source == "measured on B"
    assert read_maps(own) == {"A": POINTS[1:]}
    assert read_maps(shipped) == {"A": POINTS[:1], "B": POINTS[1:2]}


def test_what_was_not_measured_says_so_and_prefers_the_kernel(tmp_path: Path):
    found = CrossoverMap.of("nothing", (tmp_path / "none.json", SHIPPED))
    assert found.source == "unmeasured"
    assert found.prefers_kernel(16, 1, 8)
    assert found.prefers_kernel(16, 1, 8, instead_of="repeat")


@pytest.mark.parametrize("text", ["[]", "{", '{"A": 5}', '{"A": [{"prefix": 1}]}', '{"A": [{"speed": 1}]}'])
def test_a_file_that_is_no_map_is_named(tmp_path: Path, text: str):
    file = tmp_path / "crossover.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"crossover\.json: not a file of measured crossovers"):
        CrossoverMap.of("A", (file,))


def test_the_shipped_file_can_be_read():
    assert isinstance(read_maps(SHIPPED), dict)
