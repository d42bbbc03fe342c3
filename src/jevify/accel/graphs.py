"""A bounded pool of CUDA graphs, each a function from one device buffer of inputs to its outputs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

# Runs before capture: kernels compile, workspaces and handles are made, outside the graph's memory.
WARMUP_RUNS = 2

Body = Callable[[Tensor], Tensor]


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

    def retained_bytes(self) -> int:
        """Device memory held by the pool, as the allocator reports it."""
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == tuple(self.pool)
        )


@dataclass
class GraphCounters:
    """Cumulative counters of a pool."""

    captures: int = 0
    replays: int = 0
    fallbacks: int = 0
    evictions: int = 0
    resident: int = 0
    retained_bytes: int = 0
    last_fallback: str | None = None


@dataclass
class _Entry:
    graph: Any
    inputs: Tensor
    output: Tensor
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

    def run(self, key: Hashable, inputs: Tensor, body: Body, *, estimate_bytes: int) -> Tensor | None:
        """Replay `body(inputs)`, capturing it first when the key is new; None when it must run eagerly.

        inputs: a CPU tensor, pinned for an asynchronous copy; its shape and dtype belong to the key. body: reads
        nothing but its argument and tensors that stay in place, and synchronizes nowhere. The result lives in the
        graph's memory: copy it before the next call. estimate_bytes: a conservative guess of what the graph retains.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._admit(key, inputs, body, estimate_bytes)
            if entry is None:
                return None
        else:
            self._entries.move_to_end(key)
            entry.inputs.copy_(inputs, non_blocking=True)
        entry.graph.replay()
        self._counters.replays += 1
        return entry.output

    def counters(self) -> dict[str, Any]:
        """Captures, replays, fallbacks, evictions, resident graphs, retained bytes and the last fallback's reason."""
        self._counters.resident = len(self._entries)
        return asdict(self._counters)

    def clear(self) -> None:
        """Drop all graphs, their buffers and the remembered failures."""
        if self._entries:
            torch.cuda.synchronize(self._space.device)
        for entry in self._entries.values():
            entry.graph.reset()
        self._entries.clear()
        self._failed.clear()
        self._counters.retained_bytes = 0

    def _admit(self, key: Hashable, inputs: Tensor, body: Body, estimate: int) -> _Entry | None:
        if key in self._failed:
            self.fall_back(self._failed[key])
            return None
        if estimate > self._budget:
            self._failed[key] = f"a graph of about {estimate} bytes exceeds the budget of {self._budget}"
            self.fall_back(self._failed[key])
            return None
        while len(self._entries) >= self._max_graphs:
            self._evict()
        try:
            entry = self._capture(inputs, body)
        except torch.cuda.OutOfMemoryError as error:
            self._failed[key] = f"capture ran out of memory: {error}"
            self.fall_back(self._failed[key])
            return None
        except RuntimeError as error:
            if "capture" not in str(error).lower():
                raise
            self._failed[key] = f"capture failed: {error}"
            self.fall_back(self._failed[key])
            return None
        self._counters.captures += 1
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

    def _capture(self, inputs: Tensor, body: Body) -> _Entry:
        space = self._space
        buffer = inputs.to(space.device)
        current = torch.cuda.current_stream(space.device)
        space.stream.wait_stream(current)
        with torch.cuda.stream(space.stream):
            for _ in range(WARMUP_RUNS):
                body(buffer)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=space.pool, stream=space.stream, capture_error_mode="thread_local"):
                output = body(buffer)
        except BaseException:
            graph.reset()
            raise
        finally:
            current.wait_stream(space.stream)
        return _Entry(graph, buffer, output, body)

    def _evict(self) -> None:
        _, entry = self._entries.popitem(last=False)
        # Its last replay may still be running.
        torch.cuda.synchronize(self._space.device)
        entry.graph.reset()
        self._counters.evictions += 1

    def fall_back(self, reason: str) -> None:
        """Count a call that had to run eagerly, and keep its reason."""
        self._counters.fallbacks += 1
        self._counters.last_fallback = reason
