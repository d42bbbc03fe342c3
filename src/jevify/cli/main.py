"""Entry of `jevify` and `python -m jevify`: picks the job and turns errors into exit codes.

Whatever takes time to import is imported inside the functions, where an interrupt is caught.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence

from jevify.errors import InputError, JevifyError

PLANNED = (
    "eval",
    "shadow",
    "calibrate",
    "tune",
    "world",
    "optimizations",
    "ledger",
)
"""Commands of later versions."""

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return the exit code.

    0: done. 2: input or settings that the user can mend. 1: any other failure. 130: interrupted. Errors are
    told on stderr; only an unexpected one comes with its traceback. Nothing is raised.
    """
    try:
        return _told(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED


def _told(argv: list[str]) -> int:
    from jevify.cli.output import prepare_streams, tell

    prepare_streams()
    try:
        code = _dispatch(argv)
    except SystemExit as stop:  # argparse leaves this way after --help
        code = stop.code if isinstance(stop.code, int) else 0
    except JevifyError as error:
        tell(str(error))
        code = error.exit_code
    except BrokenPipeError:
        code = 1
    except Exception as error:
        import traceback

        traceback.print_exc()
        tell(f"unexpected error: {type(error).__name__}: {error}")
        code = 1
    return code if _flushed() else code or 1


def _dispatch(argv: list[str]) -> int:
    from argparse import Namespace
    from importlib import import_module

    from jevify.cli.arguments import COMMANDS, Parser, check_utf8, parse_decide

    if sys.stdout is None:
        raise JevifyError("standard output is closed: there is nowhere to print the result")
    check_utf8(argv)
    if not argv or argv[0].startswith("-"):
        args = parse_decide(argv)
        from jevify.cli import decide

        return decide.run(args)
    name = argv[0]
    if name in COMMANDS:
        module = import_module(f"jevify.cli.{name}")
        parser = Parser(prog="jevify")
        module.add_parser(parser.add_subparsers(dest="command", metavar="COMMAND"))
        code: int = module.run(parser.parse_args(argv, Namespace(words=argv)))
        return code
    if name in PLANNED:
        raise InputError(f"{name} is not in this version; the commands are {', '.join(COMMANDS)}")
    raise InputError(_no_command(name, COMMANDS))


def _no_command(name: str, commands: Iterable[str]) -> str:
    from difflib import get_close_matches

    likely = get_close_matches(name, (*commands, *PLANNED), n=1)
    hint = f"did you mean {likely[0]}? " if likely else ""
    return (
        f"{name!r} is no command: {hint}the commands are {', '.join(commands)}; "
        "to decide about a text write --context TEXT or --context-file FILE\nsee jevify --help"
    )


def _flushed() -> bool:
    """Whether stdout took everything; what it did not take is dropped."""
    # Here rather than at exit, where Python would print what went wrong in its own way.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # What is still buffered would raise once more when Python closes the stream.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
