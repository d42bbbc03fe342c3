"""A bounded pool of CUDA graphs, each a function from device buffers of its own to its output."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

# Runs before capture: kernels compile, workspaces and handles are made, outside the graph's memory.
WARMUP_RUNS = 2

Body = Callable[..., Tensor]


class CaptureSpace:
    """What all graphs of one model share: one capture stream and one memory pool.

    One stream keeps the workspaces that libraries make per stream from multiplying; one pool lets graphs, which never
    run at once, use the same memory. Graphs of one space must be replayed under one lock.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = threading.Lock()

    def capture(self, buffers: Sequence[Tensor], body: Body) -> tuple[Any, Tensor]:
        """A graph of `body(*buffers)`, with `reset` and `replay`, and the output that each replay overwrites."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(WARMUP_RUNS):
                body(*buffers)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                output = body(*buffers)
        except BaseException:
            graph.reset()
            raise
        finally:
            current.wait_stream(self.stream)
        return graph, output

    def synchronize(self) -> None:
        """Wait for the device: the last replay of a graph may still run."""
        torch.cuda.synchronize(self.device)

    def retained_bytes(self) -> int:
        """Device memory held by the pool, as the allocator reports it."""
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == tuple(self.pool)
        )


@dataclass
class GraphCounters:
    """Cumulative counters of a pool. `capture_ms` is the wall time of all captures, their warm-up runs included."""

    captures: int = 0
    capture_ms: float = 0.0
    replays: int = 0
    fallbacks: int = 0
    evictions: int = 0
    resident: int = 0
    retained_bytes: int = 0
    last_fallback: str | None = None


@dataclass
class _Entry:
    graph: Any
    output: Tensor
    inputs: tuple[Tensor, ...]
    # Keeps the tensors alive that the body reads beside its inputs.
    body: Body


class GraphPool:
    """Captures a body once for each key and replays it with fresh inputs.

    At most `max_graphs` graphs and `budget_bytes` of retained memory; the least recently used go first. A key whose
    capture failed or whose estimate exceeds the budget is remembered until `clear` and not tried again.
    """

    def __init__(self, space: CaptureSpace, *, max_graphs: int, budget_bytes: int) -> None:
        self._space = space
        self._max_graphs, self._budget = max_graphs, budget_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._failed: dict[Hashable, str] = {}
        self._counters = GraphCounters()

    def run(self, key: Hashable, inputs: Sequence[Tensor], body: Body, *, estimate_bytes: int) -> Tensor | None:
        """Replay `body(*inputs)`, capturing it first when the key is new; None when it must run eagerly.

        inputs: CPU tensors, pinned for an asynchronous copy, or tensors of the device; their shapes and dtypes belong
        to the key, and every replay copies them into buffers of the graph's own. body: reads nothing but its arguments
        and tensors that stay in place, and synchronizes nowhere. The result lives in the graph's memory: copy it before
        the next call. estimate_bytes: a conservative guess of what the graph retains.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._admit(key, inputs, body, estimate_bytes)
            if entry is None:
                return None
        else:
            self._entries.move_to_end(key)
            for buffer, fresh in zip(entry.inputs, inputs, strict=True):
                buffer.copy_(fresh, non_blocking=True)
        entry.graph.replay()
        self._counters.replays += 1
        return entry.output

    def apart(self) -> "GraphPool":
        """An empty pool of the same bounds on the same stream, in memory of its own: its graphs do not count here."""
        space = copy(self._space)
        space.pool = torch.cuda.graph_pool_handle()
        return GraphPool(space, max_graphs=self._max_graphs, budget_bytes=self._budget)

    def counters(self) -> dict[str, Any]:
        """The GraphCounters: captures, replays, fallbacks, evictions, what is resident, the last fallback's reason."""
        self._counters.resident = len(self._entries)
        return asdict(self._counters)

    def clear(self) -> None:
        """Drop all graphs, their buffers and the remembered failures."""
        if self._entries:
            self._space.synchronize()
        for entry in self._entries.values():
            entry.graph.reset()
        self._entries.clear()
        self._failed.clear()
        self._counters.retained_bytes = 0

    def _admit(self, key: Hashable, inputs: Sequence[Tensor], body: Body, estimate: int) -> _Entry | None:
        if key in self._failed:
            self.fall_back(self._failed[key])
            return None
        if estimate > self._budget:
            self._failed[key] = f"a graph of about {estimate} bytes exceeds the budget of {self._budget}"
            self.fall_back(self._failed[key])
            return None
        while len(self._entries) >= self._max_graphs:
            self._evict()
        begin = time.perf_counter()
        try:
            entry = self._capture(inputs, body)
        except torch.cuda.OutOfMemoryError as error:
            self._failed[key] = f"capture ran out of memory: {error}"
            self.fall_back(self._failed[key])
            return None
        except RuntimeError as error:
            if "captur" not in str(error).lower():
                raise
            self._failed[key] = f"capture failed: {error}"
            self.fall_back(self._failed[key])
            return None
        self._counters.captures += 1
        self._counters.capture_ms += (time.perf_counter() - begin) * 1e3
        self._entries[key] = entry
        while (retained := self._space.retained_bytes()) > self._budget and len(self._entries) > 1:
            self._evict()
        if retained > self._budget:
            self._evict()
            self._failed[key] = f"its graph retained {retained} bytes, over the budget of {self._budget}"
            self.fall_back(self._failed[key])
            return None
        self._counters.retained_bytes = retained
        return entry

    def _capture(self, inputs: Sequence[Tensor], body: Body) -> _Entry:
        buffers = tuple(fresh.to(self._space.device, copy=True) for fresh in inputs)
        return _Entry(*self._space.capture(buffers, body), buffers, body)

    def _evict(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self._space.synchronize()
        entry.graph.reset()
        self._counters.evictions += 1

    def fall_back(self, reason: str) -> None:
        """Count a call that had to run eagerly, and keep its reason."""
        self._counters.fallbacks += 1
        self._counters.last_fallback = reason
