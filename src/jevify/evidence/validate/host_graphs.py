"""A capture space without CUDA: a graph is its body, run again over the graph's own buffers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class HostGraph:
    """What `HostSpace.capture` gives in the place of a CUDA graph."""

    def __init__(self, body: Callable[..., Tensor], buffers: Sequence[Tensor], output: Tensor) -> None:
        self.body, self.buffers = body, buffers
        self.output: Tensor | None = output

    def replay(self) -> None:
        """Overwrite the output with the body's result for what the buffers hold now."""
        assert self.output is not None, "a reset graph was replayed"
        fresh = self.body(*self.buffers)
        assert fresh.shape == self.output.shape
        self.output.copy_(fresh)

    def reset(self) -> None:
        """Let go of the memory."""
        self.buffers, self.output = (), None


class HostSpace:
    """Takes the place of a `CaptureSpace`. retained: bytes that every live graph is said to hold."""

    device = torch.device("cpu")

    def __init__(self, retained: int = 0) -> None:
        self.retained = retained
        self.graphs: list[HostGraph] = []

    def capture(self, buffers: Sequence[Tensor], body: Callable[..., Tensor]) -> tuple[HostGraph, Tensor]:
        """See CaptureSpace; a replay that read what the first run left behind would read nonsense."""
        output = torch.full_like(body(*buffers), -12345)
        self.graphs.append(HostGraph(body, buffers, output))
        return self.graphs[-1], output

    def synchronize(self) -> None:
        """Nothing runs beside the caller."""

    def retained_bytes(self) -> int:
        """See CaptureSpace."""
        return self.retained * sum(graph.output is not None for graph in self.graphs)
