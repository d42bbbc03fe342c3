"""OpenTelemetry spans, where its API is installed and something configured it.

Nothing is configured here: `opentelemetry-instrument jevify serve ...` reads the standard's OTEL_* variables. Without
it the API hands out spans that do nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None


@contextmanager
def request_span(name: str, headers: Mapping[str, str], fields: Mapping[str, Any]) -> Iterator[None]:
    """A server span around a request, a child of the caller's. `fields`, as filled in by its end, become attributes."""
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    context = propagate.extract(headers)
    tracer = trace.get_tracer("jevify")
    with tracer.start_as_current_span(name, context, trace.SpanKind.SERVER) as span:
        try:
            yield
        finally:
            for key, value in fields.items():
                if isinstance(value, str | bool | int | float):
                    span.set_attribute(f"jevify.{key}", value)
