"""Sizes that captured graphs are padded to, so that a few of them serve traffic of any length."""


def bucket(size: int, *, least: int, steps: int) -> int:
    """The smallest bucket that holds `size`: `least` doubled any number of times, with `steps` buckets an octave.

    Four steps waste at most a quarter of a bucket, one step a half. `steps` must divide `least`.
    """
    if size <= least:
        return least
    octave = least
    while octave * 2 < size:
        octave *= 2
    width = octave // steps
    return -(-size // width) * width
