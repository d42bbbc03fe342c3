"""The bookkeeping of the graph pool, without CUDA."""

import pytest
import torch

from host_graphs import HostSpace
from jevify.accel.buckets import bucket
from jevify.accel.graphs import GraphPool

pytestmark = pytest.mark.cpu
MIB = 2**20


def pool(retained=0, max_graphs=2):
    return GraphPool(HostSpace(retained), max_graphs=max_graphs, budget_bytes=64 * MIB)


def numbers(*values):
    return torch.tensor(values)


def test_replays_read_fresh_inputs_of_every_buffer():
    graphs = pool()
    for left, right in ((1, 2), (3, 4), (5, 6)):
        found = graphs.run("product", [numbers(left), numbers(right)], lambda x, y: x * y, estimate_bytes=0)
        assert found.tolist() == [left * right]
    counters = graphs.counters()
    assert (counters["captures"], counters["replays"], counters["fallbacks"]) == (1, 3, 0)
    assert counters["capture_ms"] > 0


def test_a_graph_keeps_buffers_of_its_own():
    graphs, given = pool(), numbers(7)
    graphs.run("same", [given], lambda x: x + 1, estimate_bytes=0)
    given.fill_(100)
    assert graphs.run("same", [numbers(1)], lambda x: x + 1, estimate_bytes=0).tolist() == [2]
    assert given.tolist() == [100]


def test_the_least_recently_used_goes_first():
    graphs = pool()
    for key in ("a", "b", "a", "c", "a", "b"):
        graphs.run(key, [numbers(1)], lambda x: x + 1, estimate_bytes=0)
    counters = graphs.counters()
    assert (counters["captures"], counters["evictions"], counters["resident"]) == (4, 2, 2)


def test_an_estimate_over_the_budget_is_remembered_until_cleared():
    graphs = pool()
    for _ in range(2):
        assert graphs.run("big", [numbers(1)], lambda x: x, estimate_bytes=65 * MIB) is None
    assert graphs.counters()["fallbacks"] == 2
    assert "exceeds the budget" in graphs.counters()["last_fallback"]
    graphs.clear()
    assert graphs.run("big", [numbers(1)], lambda x: x + 1, estimate_bytes=0).tolist() == [2]


def test_what_is_retained_stays_inside_the_budget():
    graphs = pool(retained=40 * MIB, max_graphs=8)
    for key in "abc":
        assert graphs.run(key, [numbers(1)], lambda x: x + 1, estimate_bytes=0) is not None
        assert graphs.counters()["retained_bytes"] <= 64 * MIB
    assert graphs.counters()["evictions"] == 2
    assert graphs.counters()["resident"] == 1


def test_a_failed_capture_is_remembered_and_other_errors_surface():
    def fails(x):
        raise RuntimeError("operation not permitted when stream is capturing")

    def broken(x):
        raise RuntimeError("index out of range")

    graphs = pool()
    for _ in range(2):
        assert graphs.run("bad", [numbers(1)], fails, estimate_bytes=0) is None
    assert graphs.counters()["fallbacks"] == 2
    assert "capturing" in graphs.counters()["last_fallback"]
    with pytest.raises(RuntimeError, match="index out of range"):
        graphs.run("broken", [numbers(1)], broken, estimate_bytes=0)


def test_buckets_grow_by_at_most_a_quarter():
    sizes = sorted({bucket(size, least=192, steps=4) for size in range(1, 2_689)})
    assert sizes == [192, 240, 288, 336, 384, 480, 576, 672, 768, 960, 1152, 1344, 1536, 1920, 2304, 2688]
    for size in range(1, 5_000):
        found = bucket(size, least=192, steps=4)
        assert found >= size
        assert found == 192 or found * 4 <= size * 5 + 4
        assert bucket(found, least=192, steps=4) == found
    assert [bucket(size, least=32, steps=1) for size in (0, 32, 33, 64, 65)] == [32, 32, 64, 64, 128]
