"""Kernels alone: what is measured of each, with times that the test gives and kernels in Triton's interpreter."""

from typing import Any

import pytest

from fake_engine import FakeClock
from jevify.accel.ops import MODULE_KERNELS, triton_runtime
from jevify.errors import InputError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.floor import Machine
from jevify.evidence.kernel_rivals import NotHere
from jevify.evidence.kinds.kernels import run as kind
from jevify.evidence.report import markdown, tables
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO: dict[str, Any] = {
    "name": "kernels",
    "kind": "kernels",
    "seed": 7,
    "repeats": 3,
    "dtype": "bfloat16",
    "device": "cpu",
    "rows": [5, 3],
    "shape": {"hidden": 48, "intermediate": 72, "heads": 6, "kv_heads": 2, "head_size": 8},
}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernels run as their references in 1 ms, everything else in 4; liger is not there, nothing compiles."""
    seen: list[int] = []

    def cold(call: Any, sets: Any, *, replays: int) -> float:
        seen.append(len(sets))
        call(*sets[0])
        # The calls of the cases name what they run.
        return 0.001 if any(name.endswith("_kernel") for name in call.__code__.co_names) else 0.004

    def missing(case: Any) -> Any:
        raise NotHere("not installed (no module)")

    monkeypatch.setattr(kind, "cold_milliseconds", cold)
    monkeypatch.setattr(kind, "compiled", lambda case: case.reference)
    monkeypatch.setattr(kind, "liger", missing)
    monkeypatch.setattr(kind, "machine_of", lambda device: Machine("tiny", 1e9, 1e9))
    return seen


def bench(clock: Any = None, **changes: Any) -> dict[str, Any]:
    return run_benchmark(parse_scenario({**SCENARIO, **changes}), command="x", clock=clock or FakeClock())


def rows(result: dict[str, Any], case: int = 0) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result["cases"][case]["arms"]}


interpreted = pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter")


@interpreted
def test_every_kernel_has_its_time_rate_and_distance(timed: list[int]) -> None:
    result = bench()
    assert failures(result) == []
    found = rows(result)
    assert {name.split(", ")[0] for name in found} == set(MODULE_KERNELS)
    # 5 rows of 48: read and written, and the weight; two bytes each, in a microsecond.
    moved = 2 * (5 * 48 * 2 + 48)
    kernel, eager = found["rmsnorm, kernel"], found["rmsnorm, eager"]
    assert kernel["microseconds"] == 1.0
    assert kernel["gb_per_second"] == round(moved / 1e-6 / 1e9, 1)
    assert kernel["bandwidth_share"] == pytest.approx(moved / 1e-6 / 1e9, abs=1e-4)
    assert kernel["mismatch"] <= 0.01
    assert (eager["microseconds"], eager["mismatch"], eager["ulp"]) == (4.0, 0.0, 0)
    assert found["rope, liger"]["skipped"] == "not installed (no module)"
    assert set(timed) == {160}
    assert [case["case"]["rows"] for case in result["cases"]] == [5, 3]


@interpreted
def test_the_table_puts_each_way_beside_eager_and_says_what_is_missing(timed: list[int]) -> None:
    result = bench()
    (table,) = tables(result)
    assert [row[1] for row in table.rows[4:8]] == [
        f"rmsnorm, {implementation}" for implementation in ("kernel", "eager", "liger", "compile")
    ]
    assert table.rows[4][2:4] == ["1.00", "4.00"]
    assert table.rows[6][2:] == ["skipped", "-", "-", "-", "-", "-"]
    assert "not installed (no module)" in markdown(result)
    assert markdown(result).count("not installed (no module)") == 1


@interpreted
def test_a_failing_kernel_leaves_the_others(timed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(case: Any) -> Any:
        if case.name == "rope":
            return lambda *inputs: 1 / 0
        return case.reference

    monkeypatch.setattr(kind, "compiled", compiled)
    result = bench()
    assert failures(result) == [f"{count} rows, rope, compile: ZeroDivisionError: division by zero" for count in (5, 3)]
    assert rows(result)["swiglu, compile"]["microseconds"] == 4.0


@interpreted
def test_a_library_that_breaks_at_its_import_is_a_failure_and_one_that_is_missing_is_not(
    timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(case: Any) -> Any:
        if case.name == "swiglu":
            raise AttributeError("no such thing in this Triton")
        raise NotHere("not installed (no module)")

    monkeypatch.setattr(kind, "liger", broken)
    result = bench(rows=[5])
    assert failures(result) == ["5 rows, swiglu, liger: AttributeError: no such thing in this Triton"]
    assert "skipped" in rows(result)["rope, liger"]


@interpreted
def test_what_the_time_limit_cuts_is_skipped(timed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    original = kind.cold_milliseconds

    def slow(call: Any, sets: Any, *, replays: int) -> float:
        clock.now += 1
        return original(call, sets, replays=replays)

    monkeypatch.setattr(kind, "cold_milliseconds", slow)
    result = bench(clock, seconds=17.5)
    # Eight kernels, eight references, and two of the compiled ones.
    assert "microseconds" in rows(result, 1)["rope, eager"]
    compiled = [row for case in (0, 1) for name, row in rows(result, case).items() if name.endswith("compile")]
    assert sum("microseconds" in row for row in compiled) == 2
    assert sum(row.get("skipped") == "the limit of 17.5 s was reached" for row in compiled) == 6


@interpreted
def test_without_a_gpu_every_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "compiled", lambda case: case.reference)
    found = failures(bench(rows=[2]))
    assert len(found) == 12
    assert all(line.endswith("JevifyError: GPU times need a CUDA device") for line in found)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rows", [], "scenario.rows: give a list of one whole number"),
        ("rows", [0], r"scenario.rows.\[0\]: 0 is not a whole number"),
        ("seconds", "x", "scenario.seconds: 'x' is not a number above 0"),
        ("shape", {"hidden": 3}, "scenario.shape.intermediate: missing"),
        ("shape", {**SCENARIO["shape"], "heads": 0}, "scenario.shape.heads: 0 is not"),
        ("shape", {**SCENARIO["shape"], "head_norms": 1}, "scenario.shape.head_norms: 1 is not true or false"),
        ("model", "fake", "scenario.model: unknown field"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_scenario({**SCENARIO, field: value})
