"""The standard streams: UTF-8 whatever the locale, and one way to tell errors."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jevify.cli.render import visible
from jevify.errors import JevifyError

MOST_PROBLEMS = 20
"""Lines shown of one error; the rest is counted."""

LONGEST_VALUE = 200
"""Characters shown of one quoted text or unbroken word in an error."""

LONGEST_PROBLEM = 2000
"""Characters shown of one line of an error."""

# A text in double or single quotes, or a word; an apostrophe inside a word opens nothing.
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)*'|(?:[^\s"']|(?<=\w)')+""")


def prepare_streams() -> None:
    """Make stdout and stderr write UTF-8, escaping what it cannot hold, and let a closed stderr swallow all.

    COLUMNS and LINES that are no sizes are dropped from the environment, since the libraries believe them.
    """
    if sys.stderr is None:
        # Else print would write to stdout what is meant for stderr.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    for name in ("COLUMNS", "LINES"):
        if re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "80"), re.ASCII) is None:
            del os.environ[name]


@contextmanager
def printing() -> Iterator[None]:
    """Around what is printed on stdout, and flushed at the end.

    Raises JevifyError when stdout takes no more, BrokenPipeError when nobody reads it.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise JevifyError(f"the result cannot be written to standard output: {error.strerror}") from error


def tell(message: str) -> None:
    """Print an error on stderr, each problem on a line of its own; what is too long for a reader is cut."""
    problems = message.split("\n")
    for line in problems[:MOST_PROBLEMS]:
        short = _cut(_VALUE.sub(lambda found: _cut(found[0], LONGEST_VALUE), line), LONGEST_PROBLEM)
        print(f"jevify: {visible(short)}", file=sys.stderr, flush=True)
    if len(problems) > MOST_PROBLEMS:
        print(f"jevify: … and {len(problems) - MOST_PROBLEMS} more problems", file=sys.stderr, flush=True)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    # The closing quote stays, so that what follows does not read as part of the text.
    return text[:length] + "…" + (text[-1] if text[0] == text[-1] and text[0] in "\"'" else "")
