"""Summary statistics of timing samples, in plain Python so that they run wherever the samples were taken."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How many times faster the candidate is: the median of the per-pair ratios baseline / candidate.

    `low` and `high` bound it at `confidence` (percentile bootstrap over pairs, `resamples` of them). One
    pair gives an interval without width: it says nothing about noise.
    """

    median: float
    low: float
    high: float
    confidence: float
    resamples: int
    pairs: int


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle. Raises ValueError when there is none."""
    _require(samples)
    return float(statistics.median(samples))


def quantile(samples: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the samples lie, interpolated between order statistics.

    Hyndman and Fan's type 7, as numpy and R default to. Raises ValueError when there are no samples or the
    share is outside 0 to 1.
    """
    _require(samples)
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; use a number from 0 to 1")
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def p90(samples: Sequence[float]) -> float:
    """The 0.9 quantile; see `quantile`."""
    return quantile(samples, 0.9)


def paired_ratio(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    seed: int,
    resamples: int = 2_000,
    confidence: float = 0.95,
) -> Ratio:
    """The ratio of samples taken in pairs, `baseline[i]` beside `candidate[i]`, with its bootstrap interval.

    Pairs are resampled whole, so that what slowed both halves of a pair cancels. The same seed gives the
    same interval. Raises ValueError for no samples, unequal numbers of them, or samples that are not finite
    and positive.
    """
    _require(baseline)
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} baseline samples cannot be paired with {len(candidate)} candidate samples")
    if not all(math.isfinite(sample) and sample > 0 for sample in (*baseline, *candidate)):
        raise ValueError("every sample must be a finite positive time")
    ratios = [slow / fast for slow, fast in zip(baseline, candidate, strict=True)]
    draw = random.Random(seed)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples)]
    tail = (1 - confidence) / 2
    return Ratio(
        median=median(ratios),
        low=quantile(medians, tail),
        high=quantile(medians, 1 - tail),
        confidence=confidence,
        resamples=resamples,
        pairs=len(ratios),
    )


def _require(samples: Sequence[float]) -> None:
    if not samples:
        raise ValueError("there are no samples")
