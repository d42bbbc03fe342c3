"""Targets beside what was measured."""

from typing import Any

import pytest

from jevify.errors import InputError
from jevify.evidence.targets import Targets, judged, parse_targets

pytestmark = pytest.mark.cpu

ROW: dict[str, Any] = {
    "median_ms": 4.0,
    "stages_median_ms": {"prepare": 1.0, "device": 2.5},
    "ratio": {"median": 17.0},
    "gpu_times_floor": 1.7,
}


def outcome(row: dict[str, Any], **targets: float) -> dict[str, tuple[Any, Any, Any]]:
    return {
        entry["figure"]: (entry["measured"], entry["met"], entry["short_by"])
        for entry in judged(Targets(**targets), row)
    }


def test_times_have_a_greatest_value_and_the_ratio_a_least() -> None:
    assert outcome(ROW, decide_ms=3.5, gpu_ms=2.5, ratio=18, gpu_times_floor=1.6, host_ms=0.25) == {
        "decide_ms": (4.0, False, 0.5),
        "gpu_ms": (2.5, True, 0.0),
        "ratio": (17.0, False, 1.0),
        "gpu_times_floor": (1.7, False, 0.1),
        # 4 ms less 1 of preparing and 2.5 on the device.
        "host_ms": (0.5, False, 0.25),
    }
    assert outcome(ROW, decide_ms=4, ratio=17) == {"decide_ms": (4.0, True, 0), "ratio": (17.0, True, 0)}


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    bare = {"median_ms": 4.0, "stages_median_ms": {"forward": 3.0}, "ratio": None}
    for row in (bare, {"error": "warm-up: no"}):
        assert outcome(row, gpu_ms=1, host_ms=1, ratio=2, gpu_times_floor=1) == dict.fromkeys(
            ("gpu_ms", "ratio", "gpu_times_floor", "host_ms"), (None, None, None)
        )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"decide": 3}, "targets.decide: unknown field"),
        ({"decide_ms": 0}, "targets.decide_ms: 0 is not a number above 0"),
        ({"ratio": "7"}, "targets.ratio: '7' is not a number above 0"),
        ({"gpu_ms": float("inf")}, "targets.gpu_ms: inf is not"),
        (5, "targets: 5 is not a table"),
    ],
)
def test_wrong_targets_are_named(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_targets(data, "targets")
