"""The endpoints."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive

from jevify.serve.access import Access
from jevify.serve.body import Gone, check_type, decompressed, read_body
from jevify.serve.front import Front
from jevify.serve.openapi import docs_page, document
from jevify.serve.refusals import Refusal, json_response
from jevify.serve.service import Service
from jevify.serve.wire import ALIAS, Asked, answer, packed_tree, read_context, read_system_one

PAGE = Path(__file__).with_name("page")
# Pages run nothing from elsewhere, ask nobody else, and show inside no other page.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
}
_STAGES = ("read_ms", "prepare_ms", "queue_ms", "compute_ms", "total_ms")

Result = TypeVar("Result")


def create_app(service: Service, access: Access) -> ASGIApp:
    """The ASGI app; its lifespan is that of `service`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with service.running():
            yield

    endpoints = _Endpoints(service)
    routes: list[BaseRoute] = [
        Route("/v1/systemone", endpoints.system_one, methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/workflows", endpoints.workflows),
        Route("/v1/workflows/{name}", endpoints.workflow, methods=["GET", "POST"]),
        Route("/health/live", endpoints.live),
        Route("/health/ready", endpoints.ready),
        Route("/metrics", endpoints.metrics),
        Route("/openapi.json", endpoints.openapi),
        Route("/docs", endpoints.docs),
        Route("/", endpoints.page),
    ]
    if PAGE.is_dir():
        routes.append(Mount("/page", StaticFiles(directory=PAGE)))
    return Front(Router(routes, lifespan=lifespan, redirect_slashes=False), access, service.metrics)


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def system_one(self, request: Request) -> Response:
        return await self._ask(request, read_system_one)

    async def models(self, request: Request) -> Response:
        service = self._service
        described = {
            "description": f"Typed decisions of {service.model}, uncalibrated.",
            # Checkpoints carry no date: the day since which this server has it.
            "release_date": service.since,
        }
        return json_response({"models": [{"name": name, **described} for name in (service.model, ALIAS)]})

    async def workflows(self, request: Request) -> Response:
        return json_response({"workflows": list(self._service.workflows)})

    async def workflow(self, request: Request) -> Response:
        workflow = self._service.workflows.get(request.path_params["name"])
        if workflow is None:
            raise Refusal(404, "workflow", "there is no such workflow here; GET /v1/workflows lists them")
        if request.method == "POST":
            return await self._ask(request, lambda body: read_context(body, workflow))
        return json_response(workflow.model_dump(mode="json"))

    async def live(self, request: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        state = self._service.state
        return json_response({"status": state}, status=200 if state == "ready" else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        return json_response(document())

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(docs_page(), headers=_PAGE_HEADERS)

    async def page(self, request: Request) -> Response:
        index = PAGE / "index.html"
        return FileResponse(index, headers=_PAGE_HEADERS) if index.is_file() else RedirectResponse("/docs")

    async def _ask(self, request: Request, read: Callable[[bytes], Asked]) -> Response:
        service, record = self._service, request.scope["jevify"]
        limits, began = service.limits, time.monotonic()
        deadline = began + limits.deadline_ms / 1e3
        debug = _debug(request)
        service.check_open(deadline)
        check_type(request)
        body = await read_body(request, limit=limits.body_bytes, timeout_ms=limits.body_ms)
        record["read_ms"] = round((time.monotonic() - began) * 1e3, 3)

        def understood() -> Asked:
            return read(decompressed(request, body, limit=limits.body_bytes))

        asked, compiled, answered = await _unless_gone(request.receive, service.ask(understood, deadline, record))
        reply = answer(answered.decision, compiled, asked)
        if debug:
            reply["debug"] = {
                "metadata": answered.decision["metadata"],
                "probability_status": answered.decision["probability_status"],
                "batch": answered.batch,
                "tree": packed_tree(compiled),
            }
        record["total_ms"] = round((time.monotonic() - began) * 1e3, 3)
        timing = {stage.removesuffix("_ms"): record[stage] for stage in _STAGES}
        for stage, milliseconds in timing.items():
            service.metrics.stages.labels(stage).observe(milliseconds / 1e3)
        return json_response(reply, headers={"x-jevify-timing": json.dumps(timing)})


def _debug(request: Request) -> bool:
    """Whether `?debug=1` asks for the inside of an answer: whoever gets here is on loopback or has a key."""
    wanted = request.query_params.get("debug", "0")
    if wanted not in ("0", "1"):
        detail = [{"loc": ["query", "debug"], "msg": "must be 0 or 1", "type": "value_error"}]
        raise Refusal(422, "debug", detail)
    return wanted == "1"


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client leaves. Raises Gone then."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        task.cancel()
        watch.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
