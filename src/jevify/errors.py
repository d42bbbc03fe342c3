"""Errors that the command line turns into exit codes: 2 for what the user can mend, 1 for the rest."""


class JevifyError(Exception):
    """A failure that is told in one message, without a traceback (exit code 1)."""

    exit_code = 1


class InputError(JevifyError, ValueError):
    """Input that cannot be accepted as it is: the message says what, where and what to do (exit code 2)."""

    exit_code = 2


class SettingError(InputError):
    """A setting that is invalid, has no effect here, or needs what this machine or version lacks."""


class UnsupportedModelError(InputError):
    """A model or tokenizer that this engine refuses, with the reason."""
