"""Around every request: its id, its key, its log line, and one form for all errors."""

import logging
import secrets
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jevify.serve.access import Access
from jevify.serve.body import Gone
from jevify.serve.logs import error_fields, log
from jevify.serve.metrics import Metrics
from jevify.serve.refusals import Refusal, json_response
from jevify.serve.tracing import request_span

# The status that logs give to a request whose client left; nobody is sent it.
GONE = 499
REQUEST_ID = b"x-typesafe-request-id"
# Asked every few seconds, for ever.
_QUIET = ("/health/live", "/health/ready", "/metrics")


class Front:
    """The ASGI app that servers run. `scope["jevify"]` is the record that endpoints fill for the log line."""

    def __init__(self, router: ASGIApp, access: Access, metrics: Metrics) -> None:
        self._router, self._access, self._metrics = router, access, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        began = time.monotonic()
        identity = "req_" + secrets.token_hex(12)
        record: dict[str, Any] = {"id": identity, "method": scope["method"], "status": GONE}
        # `app` makes the router raise what it cannot route.
        scope.update(jevify=record, app=self)
        started = False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record["status"] = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID, identity.encode())]
            await send(message)

        headers = Headers(scope=scope)
        with request_span(scope["method"], headers, record):
            try:
                await self._reply(scope, receive, tagged, headers)
            except Gone:
                record["status"] = GONE
            except Exception as error:
                record |= error_fields(error)
                if not started:
                    refusal = Refusal(500, "internal", "the server failed on this request")
                    await refusal.response()(scope, receive, tagged)
            record["route"] = getattr(scope.get("route"), "path", "none")
            record["total_ms"] = round((time.monotonic() - began) * 1e3, 3)
        self._note(record)

    async def _reply(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        try:
            if scope["path"].startswith("/v1/") or scope["path"] == "/metrics":
                self._access.check(headers)
            await self._router(scope, receive, send)
        except Refusal as refusal:
            scope["jevify"]["reason"] = refusal.reason
            self._metrics.refused.labels(refusal.reason).inc()
            if refusal.__cause__ is not None:
                scope["jevify"] |= error_fields(refusal.__cause__)
            await refusal.response()(scope, receive, send)
        except HTTPException as error:
            reply = json_response({"detail": error.detail}, status=error.status_code, headers=error.headers)
            await reply(scope, receive, send)

    def _note(self, record: dict[str, Any]) -> None:
        self._metrics.requests.labels(record["route"], str(record["status"])).inc()
        if record["route"] in _QUIET:
            return
        log("request", logging.ERROR if record["status"] == 500 else logging.INFO, **record)
