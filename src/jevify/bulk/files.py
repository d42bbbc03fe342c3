"""The files of a run: what is read, what is written beside the output, and that nobody else writes there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from jevify.errors import InputError, JevifyError


@dataclass(frozen=True)
class Files:
    """The input, the output and the file of rows set aside."""

    source: Path
    output: Path
    rejects: Path

    @property
    def parquet(self) -> bool:
        """Whether the output is a Parquet file."""
        return is_parquet(self.output)

    @property
    def answers(self) -> Path:
        """Where answers are added one by one: the output itself, or JSONL that becomes the Parquet file at the end."""
        return beside(self.output, ".partial.jsonl") if self.parquet else self.output

    @property
    def state(self) -> Path:
        """Where the run says how far it is."""
        return beside(self.output, ".state.json")

    @property
    def written(self) -> tuple[Path, ...]:
        """All files that a run makes and keeps or leaves behind, each once."""
        return tuple(dict.fromkeys((self.output, self.answers, self.rejects, self.state)))

    def check(self, workflow: Path) -> None:
        """Raise InputError when the run could not write, or would write over what it reads."""
        if self.rejects in (self.output, self.answers, self.state):
            raise InputError(f"--rejects {self.rejects}: is written by this run already: name another file")
        for path in self.written:
            _check(path, (self.source, workflow))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Around a run. Raises InputError while another process runs on the same output."""
        lock = FileLock(beside(self.output, ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{self.output}: another jevify batch is writing it: wait for its end") from None
        except OSError as error:
            raise cannot_write(Path(lock.lock_file), error) from error
        try:
            yield
        finally:
            # Before the release, so that nobody has it locked by then; Windows leaves it there.
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()


def beside(path: Path, ending: str) -> Path:
    """The path with `ending` after its whole name."""
    return path.parent / (path.name + ending)


def is_parquet(path: Path) -> bool:
    """Whether the name says Parquet; every other file is JSONL."""
    return path.suffix.lower() == ".parquet"


def cannot_write(path: Path, error: OSError) -> JevifyError:
    """The error to raise when a file of the run takes no more."""
    return JevifyError(
        f"{path}: cannot be written ({error.strerror}): mend that and go on with --resume; "
        "what was decided before is kept"
    )


def _check(path: Path, sources: tuple[Path, ...]) -> None:
    if path.is_dir():
        raise InputError(f"{path}: is a folder: name a file")
    if path.exists():
        if not path.is_file():
            raise InputError(f"{path}: is not a regular file: name another")
        if any(source.exists() and source.samefile(path) for source in sources):
            raise InputError(f"{path}: is read as input by this run: name another file")
        if not os.access(path, os.W_OK):
            raise InputError(f"{path}: is write-protected: name another file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}: create it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"{path}: the folder {path.parent} cannot be written to ({error.strerror})") from None
