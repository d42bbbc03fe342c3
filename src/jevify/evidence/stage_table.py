"""Which stage of a decision takes its time, and what class of work that is."""

from collections.abc import Mapping, Sequence
from typing import Any

from jevify.evidence.stats import median, p90

CLASSES: Mapping[str, str] = {
    "prepare": "serving",
    "wait": "serving",
    "pack": "transfer / presentation",
    "prefill": "model",
    "branches": "model",
    "forward": "model",
    "scoring": "decode",
    "measuring": "model",
    "settling": "model",
    "rest": "serving",
}
"""Stage to class. Serving: rendering, tokenizing, waiting for the model, Python between stages. Decode: probabilities
from hidden rows. No stage is cache alone: forked copies the prefix inside `branches`."""

INSIDE: Mapping[str, str] = {"device": "forward"}
"""Stages that are part of another one: GPU time of the pass."""

_DECIMALS = 3


def stage_table(samples: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """A row for each stage, in the order of `samples`, with its share of the total; `rest` is what no stage covers.

    samples: milliseconds of each stage and of `total`, one value a decision. A stage of INSIDE has no share, since its
    time is that of another row. Raises KeyError without `total`.
    """
    total = samples["total"]
    apart = {stage: values for stage, values in samples.items() if stage != "total" and stage not in INSIDE}
    rest = [whole - sum(values[index] for values in apart.values()) for index, whole in enumerate(total)]
    every = {**{stage: values for stage, values in samples.items() if stage != "total"}, "rest": rest}
    return [
        {
            "stage": stage,
            "class": CLASSES.get(INSIDE.get(stage, stage), "other"),
            "median_ms": round(median(values), _DECIMALS),
            "p90_ms": round(p90(values), _DECIMALS),
            "share": None if stage in INSIDE else round(sum(values) / sum(total), 4),
        }
        for stage, values in every.items()
    ]


def dominant(table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The stage of the largest share, its class and share."""
    found = max((row for row in table if row["share"] is not None), key=lambda row: row["share"])
    return {name: found[name] for name in ("stage", "class", "share")}
