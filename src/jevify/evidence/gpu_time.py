"""GPU time of a call whose inputs are not in the cache."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jevify.errors import JevifyError
from jevify.evidence.stats import median

# Warm-up runs before a capture: kernels compile and libraries make their workspaces there.
_WARMUP = 3


def cold_milliseconds(call: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *, replays: int) -> float:
    """Median GPU milliseconds of `call(*inputs)`, once for each of `sets` in one CUDA graph that is replayed.

    No launch overhead but that inside a graph is counted. Together the sets should be larger than the cache, see
    `sets_beyond_cache`; what the calls return is kept apart too, so that neither reads nor writes find it. Raises
    JevifyError without a CUDA device, and what the call raises.
    """
    if not torch.cuda.is_available():
        raise JevifyError("GPU times need a CUDA device")
    with torch.no_grad():
        for _ in range(_WARMUP):
            call(*sets[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call(*inputs) for inputs in sets]
    graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    del kept
    graph.reset()
    # The graph's memory goes back now: a capture that runs out of memory cannot take it back itself.
    torch.cuda.empty_cache()
    return median([start.elapsed_time(stop) for start, stop in events]) / len(sets)


def sets_beyond_cache(bytes_moved: int, *, most: int) -> int:
    """How many calls of `bytes_moved` bytes fill the GPU's second-level cache twice; from 2 to `most`."""
    cache = 2**26
    if torch.cuda.is_available():
        cache = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", cache)
    return max(2, min(most, -(-2 * cache // max(1, bytes_moved))))
