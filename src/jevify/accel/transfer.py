"""Moving small results to the host without waiting for each."""

import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor from which a copy to `device` need not be waited for."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def begin_to_host(tensor: Tensor) -> Tensor:
    """A host copy of `tensor`, begun on the current stream of its device; read it after `wait` returned."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def wait(device: torch.device) -> None:
    """Wait for what the current stream of `device` was given."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class StreamClock:
    """Device milliseconds between two points of the current stream, as its events say; None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        """Begin now."""
        self._device = device
        self._begin = self._mark()
        self._end: torch.cuda.Event | None = None

    def stop(self) -> None:
        """End behind what the stream has been given so far."""
        self._end = self._mark()

    def milliseconds(self) -> float | None:
        """The time between, once the stream has passed the end."""
        if self._begin is None or self._end is None:
            return None
        return float(self._begin.elapsed_time(self._end))

    def _mark(self) -> "torch.cuda.Event | None":
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
