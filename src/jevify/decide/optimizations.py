"""The optimizations of this room."""

from jevify.accel.optimization import Optimization


def _nothing_missing(device_type: str) -> str | None:
    return None


OPTIMIZATIONS = (
    Optimization(
        name="forked prefix",
        family="cache",
        setting="executor=forked",
        missing=_nothing_missing,
        falls_back_to="independent",
        default=True,
        scenario="decide-cpu",
    ),
    Optimization(
        name="packed token tree",
        family="model",
        setting="executor=packed",
        missing=_nothing_missing,
        falls_back_to="forked",
        default=False,
        scenario="decide-cpu",
    ),
    Optimization(
        name="efficient cache",
        family="cache",
        setting="efficient_cache",
        missing=_nothing_missing,
        falls_back_to="deep copy of the prefix cache",
        default=True,
        scenario="forked-cpu",
    ),
    Optimization(
        name="length grouping",
        family="model",
        setting="length_aware",
        missing=_nothing_missing,
        falls_back_to="branches batched in question order",
        default=True,
        scenario="forked-cpu",
    ),
)
