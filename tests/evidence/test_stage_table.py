"""Stages of a decision, their class and the one that dominates."""

import pytest

from jevify.evidence.stage_table import dominant, stage_table

pytestmark = pytest.mark.cpu


def test_shares_add_up_to_the_whole_and_the_largest_dominates() -> None:
    table = stage_table(
        {
            "prepare": [6.0, 4.0, 5.0],
            "forward": [2.0, 3.0, 2.0],
            "device": [2.0, 2.0, 2.0],
            "scoring": [1.0, 1.0, 1.0],
            "total": [10.0, 10.0, 10.0],
        }
    )
    assert [(row["stage"], row["class"]) for row in table] == [
        ("prepare", "serving"),
        ("forward", "model"),
        ("device", "model"),
        ("scoring", "decode"),
        ("rest", "serving"),
    ]
    assert [row["share"] for row in table] == [0.5, 0.2333, None, 0.1, 0.1667]
    assert (table[0]["median_ms"], table[0]["p90_ms"]) == (5.0, 5.8)
    assert [row["median_ms"] for row in table] == [5.0, 2.0, 2.0, 1.0, 2.0]
    assert dominant(table) == {"stage": "prepare", "class": "serving", "share": 0.5}


def test_a_stage_of_no_class_is_other() -> None:
    assert stage_table({"dance": [1.0], "total": [1.0]})[0]["class"] == "other"
