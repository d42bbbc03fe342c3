"""Statistics against values worked by hand and against known distributions."""

import random

import pytest

from jevify.evidence.stats import median, p90, paired_ratio, quantile

pytestmark = pytest.mark.cpu


def test_median_of_odd_and_even_numbers_of_samples() -> None:
    assert median([9.0, 1.0, 5.0]) == 5.0
    assert median([4.0, 1.0, 3.0, 10.0]) == 3.5


def test_p90_interpolates_between_order_statistics() -> None:
    # 11 samples: position 0.9 * 10 = 9, the tenth smallest.
    assert p90([float(value) for value in range(11, 0, -1)]) == 10.0
    # 4 samples: position 2.7, 0.7 of the way from 30 to 40.
    assert p90([10.0, 20.0, 30.0, 40.0]) == pytest.approx(37.0)
    assert p90([8.0]) == 8.0


def test_quantile_ends_are_the_extremes() -> None:
    assert quantile([3.0, 1.0, 2.0], 0) == 1.0
    assert quantile([3.0, 1.0, 2.0], 1) == 3.0


def test_ratio_is_the_median_of_pair_ratios_not_the_ratio_of_medians() -> None:
    # Pair ratios 2, 5 and 1; the medians are 10 and 4, whose ratio would be 2.5.
    ratio = paired_ratio([10.0, 20.0, 4.0], [5.0, 4.0, 4.0], seed=1)
    assert ratio.median == 2.0
    assert ratio.pairs == 3
    assert 1.0 <= ratio.low <= 2.0 <= ratio.high <= 5.0


def test_equal_pair_ratios_leave_no_width() -> None:
    ratio = paired_ratio([30.0, 60.0, 9.0], [10.0, 20.0, 3.0], seed=1)
    assert (ratio.low, ratio.median, ratio.high) == (3.0, 3.0, 3.0)


def test_drift_common_to_a_pair_cancels() -> None:
    drift = [1.0, 7.0, 0.5, 30.0]
    ratio = paired_ratio([4.0 * factor for factor in drift], [2.0 * factor for factor in drift], seed=1)
    assert (ratio.low, ratio.high) == (2.0, 2.0)


def test_interval_is_repeated_by_its_seed_and_moved_by_another() -> None:
    draw = random.Random(5)
    slow = [draw.uniform(1, 3) for _ in range(15)]
    fast = [draw.uniform(1, 3) for _ in range(15)]
    assert paired_ratio(slow, fast, seed=1) == paired_ratio(slow, fast, seed=1)
    assert paired_ratio(slow, fast, seed=1, resamples=50) != paired_ratio(slow, fast, seed=2, resamples=50)


def test_interval_covers_a_known_ratio_about_as_often_as_it_says() -> None:
    # Log-normal noise around a ratio of 2.5, whose median is then 2.5: of 100 runs about 95 cover it. Fewer
    # than 86 would come once in 10,000 times at a true coverage of 95 %.
    draw = random.Random(11)
    covered = 0
    for run in range(100):
        fast = [draw.lognormvariate(0, 0.1) for _ in range(25)]
        slow = [2.5 * sample * draw.lognormvariate(0, 0.2) for sample in fast]
        ratio = paired_ratio(slow, fast, seed=run, resamples=400)
        covered += ratio.low <= 2.5 <= ratio.high
    assert 86 <= covered <= 100


def test_what_has_no_statistics_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])
    with pytest.raises(ValueError, match="2 baseline samples cannot be paired with 1"):
        paired_ratio([1.0, 2.0], [1.0], seed=1)
    with pytest.raises(ValueError, match="finite positive"):
        paired_ratio([1.0, 2.0], [1.0, 0.0], seed=1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        quantile([1.0], 1.5)
