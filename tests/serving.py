"""Servers of the tests: an app in this process, and one on a loopback socket."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from functools import cache

import httpx

import tiny
from jevify import Workflow
from jevify.decide.compile import CompiledRequest
from jevify.decide.plan import Branch, RequestPlan
from jevify.engine import DecisionEngine
from jevify.serve.access import Access
from jevify.serve.app import create_app
from jevify.serve.limits import ServeLimits
from jevify.serve.server import _Server
from jevify.serve.service import Service
from jevify.serve.waiting import Ticket

QUESTIONS = {
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "money", "technical": None, "refund": None},
    },
    "late": {"type": "noul", "instructions": "Is it late?"},
    "mood": {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad", "awful"]},
}
STATE = "The parcel arrived two days late and the box was torn."
KEY = "secret-key"


def body(state=STATE, questions=None, **more):
    return {"state": state, "model": "jev-latest", "questions": QUESTIONS if questions is None else questions, **more}


def ticket(tokens, seconds=60.0):
    """A ticket of a request of that many tokens, with that long to live."""
    request = CompiledRequest({}, RequestPlan((), (Branch((1,) * tokens, ((1,),)),)), True)
    now = time.monotonic()
    return Ticket(request, now + seconds, None, now)


@cache
def tiny_engine():
    return DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", executor="packed")


class Wrapped:
    """An engine whose batches a test can look at, hold up or break: `before` is called with each."""

    def __init__(self, engine=None, before=lambda requests: None):
        self._engine, self.before = engine or tiny_engine(), before
        self.batches = []

    def decide_prepared(self, requests):
        self.batches.append(len(requests))
        self.before(requests)
        return self._engine.decide_prepared(requests)

    def __getattr__(self, name):
        return getattr(self._engine, name)


def make_service(**limits):
    return Service("tiny", {"triage": Workflow(questions=QUESTIONS)}, ServeLimits(**limits))


@contextlib.asynccontextmanager
async def client_of(engine=None, *, service=None, keys=(), headers=None, **limits):
    """An httpx client of an app in this event loop."""
    service = service or make_service(**limits)
    async with service.running():
        if engine is not False:
            service.install(engine or tiny_engine())
        app = create_app(service, Access(keys, "127.0.0.1"))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            client.service = service
            yield client


@contextlib.contextmanager
def server_of(engine=None, *, keys=(), **limits):
    """A server on a free loopback port, in a thread: yields its address and its service."""
    service = make_service(**limits)
    server = _Server(service, create_app(service, Access(keys, "127.0.0.1")))
    if engine is not False:
        server.when_open = lambda: service.install(engine or tiny_engine())
    else:
        server.when_open = lambda: None
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until(lambda: server.started and (engine is False or service.state == "ready"))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def until(condition, seconds=20):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.005)


async def until_async(condition, seconds=20):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came"
        await asyncio.sleep(0.005)


def exchange(url, *parts, pause=0.0, timeout=20):
    """Send bytes on a fresh connection, with pauses between them; what came back until it was closed."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
    return received


def post(path, content, *headers):
    """The bytes of a request that closes its connection."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", "connection: close"]
    lines += [*headers, f"content-length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


def as_json(value):
    return json.dumps(value).encode()
