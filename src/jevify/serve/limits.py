"""What a server takes before it says no."""

from dataclasses import dataclass, fields

from jevify.errors import SettingError

_BOUNDS: dict[str, tuple[int, int]] = {
    "body_bytes": (1_024, 1 << 28),
    "body_ms": (100, 600_000),
    "queue_requests": (1, 1_000_000),
    "queue_tokens": (16, 1 << 30),
    "batch_requests": (1, 4_096),
    "batch_tokens": (16, 1_048_576),
    "deadline_ms": (100, 3_600_000),
    "stall_ms": (100, 3_600_000),
    "drain_ms": (0, 600_000),
    "connections": (1, 1_000_000),
}


@dataclass(frozen=True)
class ServeLimits:
    """Bounds of requests, queue and batches. Raises SettingError at construction for a value out of range.

    body_bytes: of a request body, compressed and decompressed alike. body_ms: for a body to arrive. queue_requests,
    queue_tokens: what may wait. batch_requests, batch_tokens: what one batch may hold; a request of more tokens runs
    alone. deadline_ms: from the arrival of a request to its reply; the usual client gives up after 10 s. stall_ms: how
    long one batch may run before the engine counts as wedged. drain_ms: how long requests are still told 503 after
    SIGTERM, before the port closes. connections: open at once.
    """

    body_bytes: int = 1 << 20
    body_ms: int = 5_000
    queue_requests: int = 256
    queue_tokens: int = 262_144
    batch_requests: int = 64
    batch_tokens: int = 8_192
    deadline_ms: int = 9_000
    stall_ms: int = 60_000
    drain_ms: int = 500
    connections: int = 2_048

    def __post_init__(self) -> None:
        for entry in fields(self):
            low, high = _BOUNDS[entry.name]
            value = getattr(self, entry.name)
            if type(value) is not int or not low <= value <= high:
                flag = "--" + entry.name.replace("_", "-")
                raise SettingError(f"{flag} is {value!r}; use a whole number from {low} to {high}")
