"""A program under a real pseudo-terminal."""

import os
import re
import select
import subprocess
import sys
from pathlib import Path
from time import monotonic
from types import TracebackType

TESTS = Path(__file__).parent
_ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Terminal:
    """Runs Python with `words` as its arguments; its three streams are one terminal of 100 columns.

    `shown` is what appeared so far, without escape sequences and carriage returns.
    """

    def __init__(self, *words: str, cwd: Path | None = None, stdout: int | None = None) -> None:
        import pty
        import termios

        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 100))
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        environment |= {
            "TERM": "xterm",
            "LC_ALL": "C",
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
        }
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            cwd=cwd,
            env=environment,
            start_new_session=True,
            # Only a controlling terminal turns Ctrl-C into a signal.
            preexec_fn=lambda: _take_terminal(slave),
        )
        os.close(slave)
        self._raw = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def shown(self) -> str:
        return _ESCAPES.sub("", self._raw.decode("utf-8", "replace")).replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, times: int = 1, seconds: float = 60) -> None:
        """Read until `text` has appeared `times` times; AssertionError when it does not."""
        deadline = monotonic() + seconds
        while self.shown.count(text) < times:
            assert self._read(deadline), f"{text!r} did not appear {times} times in:\n{self.shown}"

    def finish(self, seconds: float = 60) -> int:
        """Read to the end and return the exit code."""
        deadline = monotonic() + seconds
        while self._read(deadline):
            pass
        return self.process.wait(timeout=seconds)

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - monotonic()))[0]:
            return False
        try:
            block = os.read(self._master, 65_536)
        except OSError:  # Linux ends a terminal nobody holds any more this way
            return False
        self._raw += block
        return bool(block)


def _take_terminal(slave: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
