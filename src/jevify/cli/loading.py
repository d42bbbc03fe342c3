"""Loading a model for a person at a terminal: progress on stderr, no chatter of the libraries."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from jevify.cli.render import visible
from jevify.cli.stage_progress import stderr_progress
from jevify.models import catalog

if TYPE_CHECKING:
    from jevify.engine import DecisionEngine


def load_engine(
    model: str,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    device: str = "auto",
    **options: Any,
) -> "DecisionEngine":
    """The engine for `model`, fetched first when it is not here; `options` as in `from_pretrained`.

    Names are checked and files fetched before torch is imported, unless a GPU is named: nothing is downloaded for one
    that is not there. Raises JevifyError.
    """
    if device not in ("auto", "cpu"):
        with holding_interrupts():
            from jevify.models.lm.load import pick_device
        pick_device(device)
    fetch(model, revision, local_files_only)
    with waiting(f"Loading {model}"):
        with holding_interrupts():
            from jevify.engine import DecisionEngine

            silence()
        return DecisionEngine.from_pretrained(
            model, revision=revision, local_files_only=local_files_only, device=device, **options
        )


def fetch(model: str, revision: str | None, local_files_only: bool) -> None:
    """See that the files of `model` are on this machine, with a progress bar for a download."""
    with stderr_progress() as progress:
        source = catalog.locate(model, revision, local_files_only, progress=progress)
    if os.path.exists(source.path_or_id):
        return
    if catalog.installed(model, revision=revision) is None:
        # Not left to the loaders: their errors do not say what to do, and they would take pickled weights.
        catalog.pull(model, revision=revision, local_files_only=local_files_only)


def silence() -> None:
    """Turn off the libraries' progress bars and advice; their warnings stay."""
    from transformers.utils import logging as library

    library.disable_progress_bar()  # and that of the hub client
    for handler in library.get_logger().handlers:
        handler.addFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return record.funcName != "warning_advice"


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Around imports: KeyboardInterrupt comes at the end, since torch swallows it and goes on half imported."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    held = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if held:
        raise KeyboardInterrupt


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner with `text` on stderr when that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(Text(visible(text))):
        yield
