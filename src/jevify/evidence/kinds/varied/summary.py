"""What varied requests show: the spread inside a bucket, what a capture costs, and the targets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jevify.evidence.kinds.varied.scenario import VariedTargets
from jevify.evidence.stats import median, p90
from jevify.evidence.targets import held

# Fewer requests than this say nothing about a 0.9 quantile.
LEAST_SAMPLES = 10
_DECIMALS = 4
_LEAST = ("hit_rate",)


@dataclass(frozen=True)
class Sample:
    """One request: its time, the rows of its graph's bucket (None where there is none), and whether it replayed one."""

    milliseconds: float
    rows: int | None
    replayed: bool


@dataclass(frozen=True)
class Spread:
    """The requests of one bucket."""

    rows: int
    requests: int
    median_ms: float
    p90_over_median: float


def spreads(samples: Sequence[Sample]) -> list[Spread]:
    """Each bucket of LEAST_SAMPLES requests or more, by its rows. Captures and fallbacks count as they came."""
    buckets: dict[int, list[float]] = {}
    for sample in samples:
        if sample.rows is not None:
            buckets.setdefault(sample.rows, []).append(sample.milliseconds)
    return [
        Spread(rows, len(times), round(median(times), _DECIMALS), round(p90(times) / median(times), _DECIMALS))
        for rows, times in sorted(buckets.items())
        if len(times) >= LEAST_SAMPLES
    ]


def break_even(capture_ms: float, eager: Sequence[Sample], graphs: Sequence[Sample]) -> float | None:
    """Replays after which a capture has paid for itself, from the requests that both arms ran and one replayed.

    None where there are none, or a replay saves nothing.
    """
    pairs = [(slow.milliseconds, fast.milliseconds) for slow, fast in zip(eager, graphs, strict=False) if fast.replayed]
    if not pairs:
        return None
    saved = median([slow for slow, _ in pairs]) - median([fast for _, fast in pairs])
    return round(capture_ms / saved, _DECIMALS) if saved > 0 else None


def judged(targets: VariedTargets, row: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Each target beside the figure of the arm's stored row; None where the arm did not run."""
    return [
        held(name, target, _figure(name, row), least=name in _LEAST)
        for name, target in asdict(targets).items()
        if target is not None
    ]


def _figure(name: str, row: Mapping[str, Any] | None) -> float | None:
    if row is None or "error" in row:
        return None
    if name == "hit_rate":
        return row["hit_rate"]
    if name == "spread":
        return max((bucket["p90_over_median"] for bucket in row["buckets"]), default=None)
    if name == "budget_share":
        return row["retained_bytes"] / row["budget_bytes"] if row["budget_bytes"] else None
    start, end = row["driver_bytes"]["first_pass"], row["driver_bytes"]["end"]
    return None if start is None or end is None or len(row["passes"]) < 2 else (end - start) / 2**20
