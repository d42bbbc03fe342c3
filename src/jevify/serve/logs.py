"""Logs: one JSON object a line on stderr, of numbers and names of ours; never a word of a request."""

import json
import logging
import sys
import time
import traceback
from typing import Any

LOGGER = logging.getLogger("jevify.serve")


class JsonLines(logging.Formatter):
    """Formats a record as its time, level, message and the fields given as `extra={"fields": {...}}`.

    Of an exception come its type and where it was raised; its message may quote what was asked.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line |= error_fields(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False, default=str)


def error_fields(error: BaseException) -> dict[str, Any]:
    """The type of an error and the places it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    return {"error": type(error).__name__, "at": [f"{frame.filename}:{frame.lineno}" for frame in frames[-6:]]}


def log(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line."""
    LOGGER.log(level, event, extra={"fields": fields})


def configure() -> None:
    """Send our lines and the web server's own to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("jevify.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
