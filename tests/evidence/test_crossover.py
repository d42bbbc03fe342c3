"""The four ways to attend give the same rows; the kind measures each point and loses none to a failure."""

import json
from typing import Any

import pytest
import torch

import triton_interpreter
from fake_engine import FakeClock
from jevify.accel.ops import triton_runtime
from jevify.errors import InputError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.crossover import Heads, Size, repeat_bytes, ways
from jevify.evidence.kinds.crossover import run as kind
from jevify.evidence.report import markdown, tables
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

HEADS = Heads(4, 2, 16)
SCENARIO: dict[str, Any] = {
    "name": "map",
    "kind": "crossover",
    "seed": 7,
    "repeats": 3,
    "dtype": "float32",
    "device": "cpu",
    "heads": [4, 2, 16],
    "prefix": [4, 40],
    "branches": [1, 3],
    "rows": [2],
    "most_rows": 45,
}


@pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter")
@pytest.mark.parametrize("size", [Size(7, 3, 5), Size(1, 1, 4), Size(20, 1, 3), Size(40, 4, 50)])
def test_every_way_attends_to_the_same_rows(size: Size) -> None:
    triton_interpreter.repair()
    found = ways(size, HEADS, dtype=torch.float32, device=torch.device("cpu"), processors=0)
    q, k, v = found["kernel"].inputs()
    wanted = found["calls"].run(q, k, v)
    torch.testing.assert_close(found["kernel"].run(q, k, v), wanted)
    seen = size.prefix
    torch.testing.assert_close(found["behind"].run(q[seen:], k, v), wanted[seen:])

    def branches(rows: torch.Tensor) -> torch.Tensor:
        return rows[seen:].unflatten(0, (size.branches, size.rows)).transpose(1, 2)

    prefix = [rows[:seen].transpose(0, 1)[None] for rows in (k, v)]
    repeated = found["repeat"].run(branches(q), branches(k), branches(v), *prefix)
    torch.testing.assert_close(repeated.transpose(1, 2).flatten(0, 1), wanted[seen:])


def test_inputs_have_the_shapes_and_bytes_that_each_way_takes() -> None:
    size = Size(7, 3, 5)
    found = ways(size, HEADS, dtype=torch.bfloat16, device=torch.device("cpu"), processors=0)
    shapes = {name: [tuple(tensor.shape) for tensor in way.inputs()] for name, way in found.items()}
    assert shapes["kernel"] == shapes["calls"] == [(22, 4, 16), (22, 2, 16), (22, 2, 16)]
    assert shapes["behind"] == [(15, 4, 16), (22, 2, 16), (22, 2, 16)]
    assert shapes["repeat"] == [(3, 4, 5, 16), (3, 2, 5, 16), (3, 2, 5, 16), (1, 2, 7, 16), (1, 2, 7, 16)]
    for way in found.values():
        assert way.bytes_moved == sum(tensor.nbytes for tensor in way.inputs())
    # Repeated, appended, and one copy for each query head: 3 branches of 12 keys, keys and values.
    assert repeat_bytes(size, HEADS, torch.bfloat16) == 2 * 36 * (4 + 2 * 2) * 16 * 2


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Milliseconds by way; 0 makes it fail. The ways take nothing and return nothing."""
    given = {"kernel": 0.002, "calls": 0.003, "behind": 0.004, "repeat": 0.001}
    names: dict[Any, str] = {}
    original = kind.ways

    def named(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        names.update({way.run: name for name, way in found.items()})
        return found

    def cold(run: Any, sets: Any, *, replays: int) -> float:
        if not given[names[run]]:
            raise RuntimeError("out of luck")
        return given[names[run]]

    monkeypatch.setattr(kind, "ways", named)
    monkeypatch.setattr(kind, "cold_milliseconds", cold)
    return given


def bench(clock: Any = None, **changes: Any) -> dict[str, Any]:
    return run_benchmark(parse_scenario({**SCENARIO, **changes}), command="x", clock=clock or FakeClock())


def test_points_come_in_the_order_of_the_grid_without_the_largest(times: dict[str, float]) -> None:
    (case,) = bench()["cases"]
    # 40 + 3 * 2 is more than 45.
    assert [row["name"] for row in case["arms"]] == ["P=4 N=1 Q=2", "P=4 N=3 Q=2", "P=40 N=1 Q=2"]
    assert case["case"] == {"name": "shared attention", "device": "cpu", "points": 3, "measured": 3}
    assert {name: case["arms"][0][name] for name in ("kernel_us", "calls_us", "behind_us", "repeat_us")} == {
        "kernel_us": 2.0,
        "calls_us": 3.0,
        "behind_us": 4.0,
        "repeat_us": 1.0,
    }


def test_the_table_and_the_remarks_tell_winners_and_losses(times: dict[str, float]) -> None:
    result = bench()
    (table,) = tables(result)
    assert table.rows[0] == ["shared attention", "P=4 N=1 Q=2", "2.0", "3.0", "1.50", "4.0", "1.0", "0.25"]
    text = markdown(result)
    assert "packed, against reference SDPA calls: the kernel loses at 0 of 3 points" in text
    assert "the kernel loses at 3 of 3 points: P=4 N=1 Q=2, P=4 N=3 Q=2, P=40 N=1 Q=2" in text


def test_a_failing_way_leaves_the_others_of_its_point(times: dict[str, float]) -> None:
    times["repeat"] = 0
    result = bench()
    assert failures(result)[0] == "shared attention, P=4 N=1 Q=2: repeat: RuntimeError: out of luck"
    assert result["cases"][0]["arms"][0]["behind_us"] == 4.0
    json.dumps(result)


def test_repeating_is_left_out_where_it_takes_too_much(times: dict[str, float]) -> None:
    # 3 branches behind 4,000 tokens: 2 * 12,006 keys of 8 heads of 16 values, four bytes each, are 11.7 MiB.
    arms = bench(prefix=[4, 4000], most_rows=10_000, most_mib=8)["cases"][0]["arms"]
    assert ["repeat_us" in row for row in arms] == [True, True, True, False]
    assert all("behind_us" in row for row in arms)


def test_what_the_time_limit_cuts_is_told(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    measured = kind._measured

    def slow(*arguments: Any) -> Any:
        clock.now += 1
        return measured(*arguments)

    monkeypatch.setattr(kind, "_measured", slow)
    result = bench(clock, seconds=1.5)
    assert len(result["cases"][0]["arms"]) == 2
    assert "1 points were left out at the time limit" in markdown(result)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("heads", [4, 2], "scenario.heads: give query heads, key heads that divide them"),
        ("heads", [4, 3, 16], "scenario.heads: give query heads, key heads that divide them"),
        ("prefix", [0], r"scenario.prefix.\[0\]: 0 is not a whole number"),
        ("rows", 5, "scenario.rows: give a list of one whole number"),
        ("most_rows", 0, "scenario.most_rows: 0 is not"),
        ("seconds", 0, "scenario.seconds: 0 is not a number above 0"),
        ("shape", {}, "scenario.shape: unknown field"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_scenario({**SCENARIO, field: value})
