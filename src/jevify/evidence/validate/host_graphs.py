"""A capture space without CUDA: a graph is its body, run again over the graph's own buffers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class HostGraph:
    """What `HostSpace.capture` gives in the place of a CUDA graph."""

    def __init__(
        self, space: "HostSpace", body: Callable[..., Tensor], buffers: Sequence[Tensor], output: Tensor
    ) -> None:
        self._space, self.body, self.buffers = space, body, buffers
        self.output: Tensor | None = output

    def replay(self) -> None:
        """Overwrite the output with the body's result for what the buffers hold now.

        Outputs of the other graphs are lost: graphs of one space share its memory.
        """
        assert self.output is not None, "a reset graph was replayed"
        self._space.forget_outputs()
        fresh = self.body(*self.buffers)
        assert fresh.shape == self.output.shape
        self.output.copy_(fresh)

    def reset(self) -> None:
        """Let go of the memory."""
        self.buffers, self.output = (), None


class HostSpace:
    """Takes the place of a `CaptureSpace`. retained: bytes that every live graph is said to hold."""

    device = torch.device("cpu")
    _LOST = -12345

    def __init__(self, retained: int = 0) -> None:
        self.retained = retained
        self.graphs: list[HostGraph] = []

    def capture(self, buffers: Sequence[Tensor], body: Callable[..., Tensor]) -> tuple[HostGraph, Tensor]:
        """See CaptureSpace; a replay that read what the first run left behind would read nonsense."""
        output = torch.full_like(body(*buffers), self._LOST)
        self.graphs.append(HostGraph(self, body, buffers, output))
        return self.graphs[-1], output

    def forget_outputs(self) -> None:
        """Overwrite what the replays so far gave."""
        for graph in self.graphs:
            if graph.output is not None:
                graph.output.fill_(self._LOST)

    def synchronize(self) -> None:
        """Nothing runs beside the caller."""

    def retained_bytes(self) -> int:
        """See CaptureSpace."""
        return self.retained * sum(graph.output is not None for graph in self.graphs)
