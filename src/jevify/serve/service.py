"""One engine behind a server: its state, and the way of a request from its body to its answer. Knows no framework."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from jevify.decide.compile import CompiledRequest
from jevify.decide.workflow import Workflow
from jevify.errors import InputError
from jevify.serve.batcher import UNKNOWN_RETRY_MS, Answered, Batcher, Late, Overloaded
from jevify.serve.limits import ServeLimits
from jevify.serve.logs import error_fields, log
from jevify.serve.metrics import Metrics
from jevify.serve.refusals import Refusal, from_input_error, too_much
from jevify.serve.wire import ALIAS, Asked

if TYPE_CHECKING:
    from jevify.engine import DecisionEngine

State = Literal["loading", "ready", "draining", "wedged", "failing"]


class Service:
    """Answers requests while its engine can. All but `install` and `metrics` belong to one event loop."""

    def __init__(self, model: str, workflows: Mapping[str, Workflow], limits: ServeLimits) -> None:
        self.model, self.workflows, self.limits = model, dict(workflows), limits
        self.since = datetime.now(UTC).date().isoformat()
        self.metrics = Metrics()
        self.draining = False
        self.connections: Callable[[], int] = lambda: 0
        """How many connections are open; whoever runs the sockets says it."""
        self._engine: DecisionEngine | None = None
        self._batcher: Batcher | None = None
        self._preparing = 0
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="jevify-prepare")
        self.metrics.gauge("jevify_ready", "1 while requests are taken", lambda: self.state == "ready")
        self.metrics.gauge("jevify_queue_requests", "Requests waiting", lambda: self._waiting()[0])
        self.metrics.gauge("jevify_queue_tokens", "Tokens waiting", lambda: self._waiting()[1])
        self.metrics.gauge("jevify_connections", "Connections open", lambda: self.connections())
        self.metrics.engine(lambda: self._batcher.engine_counters if self._batcher else {})

    @property
    def state(self) -> State:
        """What the server can do now."""
        if self.draining:
            return "draining"
        if self._batcher is None:
            return "loading"
        if self._batcher.wedged:
            return "wedged"
        return "failing" if self._batcher.failing else "ready"

    def install(self, engine: "DecisionEngine") -> None:
        """Answer with `engine` from now on. Called once, on the event loop."""
        together = engine.settings.executor == "packed"
        self._engine, self.model = engine, engine.name
        self._batcher = Batcher(engine, self.limits, self, together=together)
        self._batcher.start()
        log("ready", model=self.model, executor=engine.settings.executor)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Around the life of the server; at the end, everything taken is answered."""
        try:
            yield
        finally:
            self.draining = True
            if self._batcher is not None:
                await self._batcher.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def ran(self, requests: int, tokens: int, seconds: float) -> None:
        """See batcher.Observer."""
        self.metrics.batch_requests.observe(requests)
        self.metrics.batch_tokens.observe(tokens)
        self.metrics.batch_seconds.observe(seconds)

    def failed(self, error: Exception, requests: int) -> None:
        """See batcher.Observer."""
        self.metrics.batch_failures.labels(type(error).__name__).inc()
        log("batch failed", 40, requests=requests, **error_fields(error))

    def check_open(self, deadline: float) -> Batcher:
        """The batcher, before anything of a request is read. Raises Refusal 529, 503 or 429."""
        batcher = self._batcher
        if self.draining:
            raise too_much(503, "draining", "the server is shutting down", UNKNOWN_RETRY_MS)
        if batcher is None:
            raise too_much(529, "loading", "the model is loading", UNKNOWN_RETRY_MS)
        if batcher.wedged:
            raise too_much(503, "wedged", "the engine makes no progress", UNKNOWN_RETRY_MS)
        if self.connections() > self.limits.connections:
            raise too_much(503, "connections", "too many connections are open", UNKNOWN_RETRY_MS)
        try:
            batcher.check_room(0, deadline, self._preparing)
        except Overloaded as error:
            raise _overloaded(error) from None
        return batcher

    async def ask(
        self, read: Callable[[], Asked], deadline: float, record: dict[str, Any]
    ) -> tuple[Asked, CompiledRequest, Answered]:
        """What a body asks, in tokens, and its answer.

        read: parses the body; it runs in a thread, as tokenizing does, so that bad input is refused before it waits.
        deadline: of `time.monotonic`. record: gets the numbers that logs and headers show. Raises Refusal.
        """
        batcher = self.check_open(deadline)
        begun = time.monotonic()
        asked, request = await self._prepared(read)
        record["prepare_ms"] = _milliseconds(time.monotonic() - begun)
        record["tokens"] = request.plan.tokens
        try:
            answered = await batcher.submit(request, deadline)
        except Overloaded as error:
            raise _overloaded(error) from None
        except Late:
            text = f"no answer within {self.limits.deadline_ms} ms"
            raise too_much(503, "deadline", text, batcher.retry_after_ms()) from None
        except InputError as error:
            raise from_input_error(error) from None
        except Exception as error:  # Whatever broke this request alone.
            raise Refusal(500, type(error).__name__, "the engine failed on this request") from error
        record["queue_ms"] = _milliseconds(answered.queued)
        record["compute_ms"] = _milliseconds(answered.computed)
        record["batch"] = answered.batch
        self.metrics.tokens.inc(request.plan.tokens)
        return asked, request, answered

    async def _prepared(self, read: Callable[[], Asked]) -> tuple[Asked, CompiledRequest]:
        self._preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._prepare, read)
        finally:
            self._preparing -= 1

    def _prepare(self, read: Callable[[], Asked]) -> tuple[Asked, CompiledRequest]:
        assert self._engine is not None
        try:
            asked = read()
        except InputError as error:
            raise from_input_error(error) from None
        if asked.model not in (None, ALIAS, self.model):
            raise Refusal(404, "model", f"there is no such model here; ask for {self.model} or {ALIAS}")
        try:
            return asked, self._engine.prepare(asked.context, asked.questions)
        except InputError as error:
            renamed = {} if isinstance(asked.questions, Workflow) else {"context": "state"}
            raise from_input_error(error, renamed) from None

    def _waiting(self) -> tuple[int, int]:
        return (self._batcher.room.requests, self._batcher.room.tokens) if self._batcher else (0, 0)


def _overloaded(error: Overloaded) -> Refusal:
    return too_much(429, error.reason, "too many requests are waiting", error.retry_after_ms)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
