"""The body of a request: read within a size and a time, decompressed within a size."""

import asyncio
import io

import zstandard
from starlette.requests import ClientDisconnect, Request

from jevify.serve.refusals import Refusal, unprocessable

# The standard asks decoders for 8 MiB of window; more would let a small body claim much memory.
_MAX_WINDOW = 1 << 23
_CLOSE = {"connection": "close"}


class Gone(Exception):
    """The client has left: there is nobody to reply to."""


async def read_body(request: Request, *, limit: int, timeout_ms: int) -> bytes:
    """The body as sent. Raises Refusal 413 over `limit` bytes, 408 when it takes longer than that, and Gone."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout_ms / 1e3):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise Refusal(408, "slow_body", f"the body took longer than {timeout_ms} ms", _CLOSE) from None
    except ClientDisconnect:
        raise Gone from None
    return b"".join(parts)


def check_type(request: Request) -> None:
    """Raise Refusal 422 unless the request says that its body is JSON, in an encoding that is known.

    The type is asked for because a page of another origin cannot set it unasked.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("multipart/"):
        raise unprocessable([((), "is multipart: this is a text model and takes no images; send JSON")], "multipart")
    if kind != "application/json":
        raise unprocessable([((), "is not JSON: send content-type application/json")], "content_type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "zstd"):
        raise unprocessable([((), "has an unknown content-encoding: send zstd or none")], "content_encoding")


def decompressed(request: Request, body: bytes, *, limit: int) -> bytes:
    """The body without its content-encoding. Raises Refusal 413 when it grows over `limit` bytes, 422 for no zstd.

    Never holds more than `limit` bytes and the decoder's window, whatever the body claims.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() != "zstd":
        return body
    decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    try:
        with decoder.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
            plain = reader.read(limit + 1)
    except zstandard.ZstdError:
        raise unprocessable([((), "is no zstd, or needs a window over 8 MiB")], "zstd") from None
    if len(plain) > limit:
        raise too_large(limit)
    return plain


def too_large(limit: int) -> Refusal:
    """The 413."""
    return Refusal(413, "body_bytes", f"the body is larger than {limit} bytes", _CLOSE)
