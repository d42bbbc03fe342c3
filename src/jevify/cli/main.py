"""Entry of `jevify` and `python -m jevify`: picks the job and turns errors into exit codes."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from jevify.cli.arguments import COMMANDS, Parser, parse_decide
from jevify.cli.output import use_utf8
from jevify.cli.render import visible
from jevify.errors import InputError, JevifyError

PLANNED = (
    "serve",
    "batch",
    "eval",
    "shadow",
    "calibrate",
    "tune",
    "world",
    "profile",
    "validate",
    "optimizations",
    "ledger",
    "evidence",
)
"""Commands of later versions."""

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return the exit code.

    0: done. 2: input or settings that the user can mend. 1: any other failure. 130: interrupted. Errors are
    told on stderr; only an unexpected one comes with its traceback. Nothing is raised.
    """
    use_utf8()
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        # Here rather than at exit, where Python would print what went wrong in its own way.
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse leaves this way after --help
        return _flushed(stop.code if isinstance(stop.code, int) else 0)
    except JevifyError as error:
        _tell(str(error))
        return _flushed(error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except Exception as error:
        traceback.print_exc()
        _tell(f"unexpected error: {type(error).__name__}: {error}")
        return _flushed(1)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        args = parse_decide(argv)
        from jevify.cli import decide

        return decide.run(args)
    name = argv[0]
    if name in COMMANDS:
        module = import_module(f"jevify.cli.{name}")
        parser = Parser(prog="jevify")
        module.add_parser(parser.add_subparsers(dest="command", metavar="COMMAND"))
        code: int = module.run(parser.parse_args(argv))
        return code
    if name in PLANNED:
        raise InputError(f"{name} is not in this version; the commands are {', '.join(COMMANDS)}")
    raise InputError(_no_command(name))


def _no_command(name: str) -> str:
    likely = get_close_matches(name, (*COMMANDS, *PLANNED), n=1)
    hint = f"did you mean {likely[0]}? " if likely else ""
    return (
        f"{name!r} is no command: {hint}the commands are {', '.join(COMMANDS)}; "
        "to decide about a text write --context TEXT or --context-file FILE\nsee jevify --help"
    )


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
        return code or 1
    return code


def _discard_stdout() -> None:
    # What is still buffered would raise once more when Python closes the stream.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str) -> None:
    for line in message.split("\n"):
        print(f"jevify: {visible(line)}", file=sys.stderr)
