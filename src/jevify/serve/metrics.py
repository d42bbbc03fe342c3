"""What Prometheus reads."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_POWERS = tuple(float(1 << power) for power in range(0, 15, 1))
_ENGINE = ("decisions", "fallbacks", "near_ties", "settled")
_GRAPHS = ("captures", "replays", "fallbacks", "evictions")


class Metrics:
    """The metrics of one server, in a registry of its own. Safe to use from any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("jevify_requests", "Replies", ["route", "status"], registry=registry)
        self.refused = Counter("jevify_refused", "Requests refused", ["reason"], registry=registry)
        self.stages = Histogram(
            "jevify_stage_seconds", "Time of answered requests by stage", ["stage"], buckets=_SECONDS, registry=registry
        )
        self.tokens = Counter("jevify_tokens", "Tokens of answered requests", registry=registry)
        self.batch_requests = Histogram(
            "jevify_batch_requests", "Requests of a batch", buckets=_POWERS[:13], registry=registry
        )
        self.batch_tokens = Histogram(
            "jevify_batch_tokens", "Tokens of a batch", buckets=_POWERS[4:], registry=registry
        )
        self.batch_seconds = Histogram(
            "jevify_batch_seconds", "Engine time of a batch", buckets=_SECONDS, registry=registry
        )
        self.batch_failures = Counter("jevify_batch_failures", "Batches that raised", ["error"], registry=registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when Prometheus asks."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def engine(self, read: Callable[[], Mapping[str, Any]]) -> None:
        """Add the counters of the engine, as `read` gives them."""
        self.registry.register(_EngineCounters(read))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


class _EngineCounters(Collector):
    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        counters = self._read()
        for name in _ENGINE:
            yield CounterMetricFamily(f"jevify_engine_{name}", f"Engine: {name}", value=counters.get(name, 0))
        passes = CounterMetricFamily("jevify_engine_forward_calls", "Forward calls", labels=["executor"])
        graphs = CounterMetricFamily("jevify_engine_graphs", "CUDA graphs", labels=["executor", "event"])
        for executor, counted in counters.items():
            if isinstance(counted, Mapping) and "forward_calls" in counted:
                passes.add_metric([executor], counted["forward_calls"])
                for event in _GRAPHS:
                    if "graphs" in counted:
                        graphs.add_metric([executor, event], counted["graphs"][event])
        yield passes
        yield graphs
