"""Counters prove the fast path, or say what is missing."""

from typing import Any

import pytest

from jevify.evidence.proof import unproven

pytestmark = pytest.mark.cpu

ARM = {"executor": "packed", "cuda_graphs": True, "fused_kernels": ["rmsnorm", "rope"]}


def counters(
    *, replays: int = 3, launches: int = 6, rope: int = 6, graph_fallbacks: int = 1, fallbacks: int = 0
) -> Any:
    graphs = {"replays": replays, "fallbacks": graph_fallbacks, "last_fallback": "too large"}
    return {
        "fallbacks": fallbacks,
        "kernel_launches": {"rmsnorm": 6, "rope": rope},
        "packed": {"graphs": graphs},
    }


def test_replays_prove_graphs_and_the_kernels_inside_them() -> None:
    assert unproven(ARM, counters(), counters(replays=8), 5) is None


def test_launches_prove_kernels_without_graphs() -> None:
    eager = {"executor": "packed", "fused_kernels": ["rmsnorm"]}
    before, after = ({"kernel_launches": {"rmsnorm": count}, "packed": {}} for count in (2, 4))
    assert unproven(eager, before, after, 2) is None
    assert unproven(eager, after, after, 2) == "no fused kernel was launched in 2 timed decisions"


def test_an_arm_that_asks_for_nothing_has_nothing_to_prove() -> None:
    assert unproven({"executor": "independent"}, {}, {}, 5) is None


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (counters(replays=7), "4 graphs were replayed in 5 timed decisions"),
        ({"fallbacks": 0, "packed": {}}, "0 graphs were replayed in 5 timed decisions"),
        (counters(replays=8, graph_fallbacks=3), "2 graph fallbacks in 5 timed decisions: too large"),
        (counters(replays=8, fallbacks=2), "2 settings fell back in 5 timed decisions"),
        (counters(replays=8, rope=0), "fused kernels that never launched: rope"),
    ],
)
def test_what_is_missing_is_said(after: Any, message: str) -> None:
    before = counters() if "graphs" in after["packed"] else {"packed": {}}
    reason = unproven(ARM, before, after, 5)
    assert reason == message
