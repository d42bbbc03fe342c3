"""Errors that the command line turns into exit codes: 2 for what the user can mend, 1 for the rest."""

from collections.abc import Sequence


class JevifyError(Exception):
    """A failure that is told in one message, without a traceback (exit code 1)."""

    exit_code = 1


class InputError(JevifyError, ValueError):
    """Input that cannot be accepted as it is: the message says what, where and what to do (exit code 2).

    problems: where the message was made of several, each as a place in the JSON input (keys and indexes from its top)
    and a text.
    """

    exit_code = 2

    def __init__(self, message: str, problems: Sequence[tuple[tuple[str | int, ...], str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class SettingError(InputError):
    """A setting that is invalid, has no effect here, or needs what this machine or version lacks."""


class UnsupportedModelError(InputError):
    """A model or tokenizer that this engine refuses, with the reason."""
