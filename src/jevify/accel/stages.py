"""Stage timers: where the wall time of a run went."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StageTimer:
    """Accumulates wall milliseconds by stage name.

    `synchronize` is called at both ends of a stage that leaves device work queued, so that it is charged to the stage
    that launched it; on the CPU there is nothing to wait for.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._milliseconds: dict[str, float] = {}
        self._begin = time.perf_counter()

    @contextmanager
    def stage(self, name: str, *, queues: bool = True) -> Iterator[None]:
        """Add the time of the block to `name`, also when the block raises.

        queues: False when the block leaves no device work behind, or waits for it itself: nothing is synchronized.
        """
        if queues:
            self._synchronize()
        begin = time.perf_counter()
        try:
            yield
        finally:
            if queues:
                self._synchronize()
            self.charge(name, (time.perf_counter() - begin) * 1e3)

    def charge(self, name: str, milliseconds: float) -> None:
        """Add time that was measured elsewhere to `name`."""
        self._milliseconds[name] = self._milliseconds.get(name, 0.0) + milliseconds

    def milliseconds(self) -> dict[str, float]:
        """Milliseconds by stage in the order first entered, and `total` since construction."""
        total = (time.perf_counter() - self._begin) * 1e3
        return {**self._milliseconds, "total": total}
