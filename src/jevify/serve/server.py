"""A server process: the socket, the model that loads behind it, and the way out."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import uvicorn

from jevify.decide.workflow import Workflow
from jevify.errors import InputError
from jevify.serve.access import Access
from jevify.serve.app import create_app
from jevify.serve.limits import ServeLimits
from jevify.serve.logs import configure, log
from jevify.serve.protocol import GuardedProtocol
from jevify.serve.service import Service

if TYPE_CHECKING:
    from jevify.engine import DecisionEngine

# Longer than the pools of usual clients keep a connection, so that they never write to one that closes.
_KEEP_ALIVE_SECONDS = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    load: Callable[[], "DecisionEngine"],
    *,
    model: str,
    workflows: Mapping[str, Workflow],
    access: Access,
    limits: ServeLimits,
    host: str,
    port: int,
) -> None:
    """Serve until SIGTERM or SIGINT, and return when all accepted requests are answered.

    load: makes the engine, in a thread; until then requests are answered 529. Its error ends the server and is raised.
    A second signal does not wait. Raises InputError when the port cannot be listened on.
    """
    listener = _listen(host, port)
    configure()
    service = Service(model, workflows, limits)
    server = _Server(service, create_app(service, access))
    failures: list[BaseException] = []

    def loading() -> None:
        try:
            engine = load()
        except BaseException as error:  # Raised again by the main thread.
            failures.append(error)
            server.should_exit = True
        else:
            assert server.loop is not None
            with contextlib.suppress(RuntimeError):  # The loop is closed: a signal came first.
                server.loop.call_soon_threadsafe(service.install, engine)

    server.when_open = lambda: threading.Thread(target=loading, name="jevify-load", daemon=True).start()
    with listener:
        name, number = listener.getsockname()[:2]
        log("listening", url=f"http://{f'[{name}]' if ':' in name else name}:{number}")
        server.run(sockets=[listener])
    if failures:
        raise failures[0]
    log("stopped")


class _Server(uvicorn.Server):
    """uvicorn that refuses for a moment before it closes its port, and that signals do not kill."""

    when_open: Callable[[], None]
    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, service: Service, app: object) -> None:
        limits = service.limits
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=GuardedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                # What was accepted has its answer, or its 503, by its deadline.
                timeout_graceful_shutdown=(limits.body_ms + limits.deadline_ms) // 1000 + 5,
            )
        )
        self._service = service
        service.connections = lambda: len(self.server_state.connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.when_open()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server, which would raise the signal again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: object) -> None:
        """See uvicorn.Server."""
        if self.loop is None:
            self.should_exit = True
        else:
            # Not here: the interrupted code may be in the middle of writing a log line.
            self.loop.call_soon_threadsafe(self._drain, sig)

    def _drain(self, number: int) -> None:
        if self._service.draining:
            self.force_exit = self.should_exit = True
            return
        self._service.draining = True
        log("draining", signal=signal.Signals(number).name)
        asyncio.get_running_loop().call_later(self._service.limits.drain_ms / 1e3, self._close)

    def _close(self) -> None:
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: cannot be listened on ({error.strerror or error})") from None
    return listener
