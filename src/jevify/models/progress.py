"""What a long job on files tells whoever watches it; the terminal is not its business."""

from typing import Protocol


class Progress(Protocol):
    """Receives the stages of a job, one at a time."""

    def stage(self, title: str, total: int | None) -> None:
        """A stage begins and the one before it is over; `total` is its size in bytes, None when unknown."""

    def advance(self, count: int) -> None:
        """`count` more bytes of the current stage are done."""

    def note(self, text: str) -> None:
        """Something the user should read once: a wait, a leftover that is not trusted."""


class Silent:
    """A `Progress` that tells nobody."""

    def stage(self, title: str, total: int | None) -> None:
        """Ignore."""

    def advance(self, count: int) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""
