"""HTTP on a socket, with a bound on how long and how large the head of a request may be.

uvicorn bounds neither, so that a client that sends a byte now and then would hold a connection for ever.
"""

import asyncio
import secrets

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEAD_SECONDS = 10.0
HEAD_BYTES = 1 << 16


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which closes a connection whose request head is slow (408) or large (431)."""

    head_seconds = HEAD_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        if self._timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, "the request head is too large")

    def on_message_begin(self) -> None:
        """Parser callback."""
        super().on_message_begin()
        if self._timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Parser callback."""
        self._head_came()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn says to what is no HTTP."""
        self._refuse(400, msg)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._timer = self.loop.call_later(self.head_seconds, self._refuse, 408, "the request head took too long")

    def _head_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, text: str) -> None:
        self._head_came()
        if self.transport.is_closing():
            return
        body = f'{{"detail":"{text}"}}'
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            f"x-typesafe-request-id: req_{secrets.token_hex(12)}\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body.encode())
        self.transport.close()
