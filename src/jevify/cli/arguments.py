"""The flags of a decision, and what may not be combined."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jevify import __version__
from jevify.cli.output import printing
from jevify.decide.settings import EXECUTORS, KERNELS, DecideSettings
from jevify.errors import InputError, SettingError
from jevify.models.catalog import DEFAULT_MODEL, RECOMMENDED_MODEL

COMMANDS = {
    "models": "list, fetch, find and check models",
    "batch": "decide about every row of a file",
    "bench": "measure candidates beside a baseline",
    "validate": "hold an engine against its oracle",
    "evidence": "plant faults and see that validation rejects them",
    "serve": "answer over HTTP",
    "profile": "where the time of a decision goes",
    "report": "draw stored runs as a page, and fill the tables of documents",
    "schema": "print the JSON Schema of a file that jevify reads",
}
"""Subcommands and what they do; each is the module of that name."""

SOURCES = ("context", "context_file", "request", "input", "interactive")
"""Where the text may come from; a run has exactly one."""

DTYPES = ("auto", "float32", "float16", "bfloat16")


class Parser(argparse.ArgumentParser):
    """A parser that raises InputError instead of leaving the process; no abbreviations, no value given twice."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.given: set[str] = set()
        for action in (None, "store"):
            self.register("action", action, _Once)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse."""
        self.given = set()
        return super().parse_known_args(args, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse itself passes over a help text that cannot be written.
        with printing():
            (file or sys.stdout).write(message)

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the message and where the help is."""
        if "expected one argument" in message:
            message += " (a value that begins with a dash is written --flag=VALUE)"
        raise InputError(f"{message}\nsee {self.prog} --help")


def parse_decide(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the flags of a decision; those left out are None.

    The destinations of engine settings are the field names of DecideSettings. Raises InputError for unknown or
    contradicting flags and SettingError for those of later versions; no file is read.
    """
    args = _parser().parse_args(argv)
    _check_source(args)
    check_engine_flags(args)
    return args


def add_engine_flags(parser: argparse.ArgumentParser, *, warmup: bool = True) -> None:
    """Add the flags that say which model answers and how, as a decision has them; check them with `check_engine_flags`.

    warmup: whether the command leaves it to its user to warm the engine up.
    """
    _add_model(parser.add_argument_group("model"))
    _add_execution(parser.add_argument_group("execution"))
    _add_scoring(parser.add_argument_group("prompts and scores"))
    if warmup:
        _add_warmup(parser.add_argument_group("warm-up"))


def check_engine_flags(args: argparse.Namespace) -> None:
    """Raise SettingError for flags of later versions and for those that contradict each other."""
    _refuse_unbuilt(args)
    _check_mode(args)
    check_device(args.device)


def check_device(device: str) -> None:
    """Raise SettingError unless `device` is auto, cpu, cuda or cuda:N."""
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", device, re.ASCII) is None:
        raise SettingError(f"--device is {device!r}; use auto, cpu, cuda or cuda:N")


def check_utf8(argv: Sequence[str]) -> None:
    """Raise InputError for the first argument whose bytes are not UTF-8."""
    for position, word in enumerate(argv, start=1):
        try:
            # Bytes that the locale could not decode come as surrogates.
            if re.search("[\ud800-\udfff]", word):
                os.fsencode(word).decode("utf-8")
        except UnicodeError:
            raise InputError(f"argument {position} ({word}) is not UTF-8 text: convert it to UTF-8") from None


def path(word: str) -> Path:
    """The type of a flag that names a file: one that the system can look up, whether it is there or not."""
    if not word:
        raise argparse.ArgumentTypeError("is empty: name a file")
    try:
        os.stat(word)
    except (FileNotFoundError, NotADirectoryError):
        pass  # Told by whoever reads or writes it.
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{word}: cannot be used ({getattr(error, 'strerror', error)})") from None
    return Path(word)


def output_path(word: str) -> Path:
    """The type of --output."""
    if word == "-":
        raise argparse.ArgumentTypeError("-: give a file; standard output already gets the result")
    return path(word)


def whole_number(word: str) -> int:
    """The type of a count; int() would take 1_0 and the digits of any script."""
    if re.fullmatch(r"[+-]?[0-9]{1,18}", word) is None:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number")
    return int(word)


def _decimal_number(word: str) -> float:
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", word) is None:
        raise argparse.ArgumentTypeError(f"{word!r} is not a decimal number")
    return float(word)


def _path_or_dash(word: str) -> str:
    if word != "-":
        path(word)
    return word


class _Once(argparse.Action):
    """Stores a value; a second one would silently take the place of the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        assert isinstance(parser, Parser)
        if self.dest in parser.given:
            parser.error(f"{option} is given twice: keep one")
        parser.given.add(self.dest)
        setattr(namespace, self.dest, values)


def _parser() -> Parser:
    parser = Parser(
        prog="jevify",
        usage=(
            "jevify [--workflow F] (--context T | --context-file F | --request F | --input F | --interactive)"
            " [flags]\n       jevify COMMAND ..."
        ),
        description="Answer typed questions about a text with a language model that generates nothing.",
        epilog="commands:\n" + "\n".join(f"  {name:<8} {text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_sources(parser.add_argument_group("what to decide"))
    add_engine_flags(parser)
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_sources(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workflow", type=path, metavar="F", help="the questions, a JSON file (default: ./workflow.json)"
    )
    group.add_argument(
        "--request",
        type=path,
        metavar="F",
        help="a JSON file with context, messages and prompts",
    )
    group.add_argument("--context", metavar="T", help="the text itself")
    group.add_argument(
        "--context-file", type=_path_or_dash, metavar="F", help="a UTF-8 file with the text; - is standard input"
    )
    group.add_argument(
        "--input",
        type=path,
        metavar="F",
        help="one JSON file with context, questions and, if known, expected_labels",
    )
    group.add_argument("--prompt", metavar="T", help="what to ask, for a workflow of one question")
    group.add_argument("--interactive", action="store_const", const=True, help="paste texts and decide until /quit")


def _add_model(group: argparse._ArgumentGroup) -> None:
    """Add the flags that name the model, its device and its dtype."""
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="M",
        help=f"a name, a folder or a hub id (default: {DEFAULT_MODEL}; for quality: {RECOMMENDED_MODEL})",
    )
    group.add_argument("--revision", metavar="R", help="branch, tag or commit of a hub model")
    group.add_argument("--local-files-only", action="store_true", help="never touch the network")
    group.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu, cuda or cuda:N")
    group.add_argument("--dtype", default="auto", choices=DTYPES, help="of the weights (default: auto)")
    group.add_argument("--adapter", type=path, metavar="DIR", help="not in this version")


def _add_execution(group: argparse._ArgumentGroup) -> None:
    """Add the flags that say how requests run."""
    group.add_argument("--attention", metavar="A", help=_default("attention", "sdpa or eager"))
    group.add_argument(
        "--mode", choices=("parallel", "independent"), help="independent: one question a forward, no tricks"
    )
    group.add_argument("--executor", choices=EXECUTORS, help="how to run; left out, the mode decides")
    _add_number(group, "--branch-batch-size", "questions in one forward of forked")
    _add_number(group, "--token-budget", "tokens in one pass of packed")
    group.add_argument(
        "--no-efficient-cache",
        dest="efficient_cache",
        action="store_const",
        const=False,
        help="deep-copy the prefix cache",
    )
    group.add_argument(
        "--no-length-grouping",
        dest="length_aware",
        action="store_const",
        const=False,
        help="batch questions in the order given",
    )
    group.add_argument("--shared-attention", metavar="auto|off|on", help=_default("shared_attention"))
    group.add_argument(
        "--no-short-attention",
        dest="specialize_short",
        action="store_const",
        const=False,
        help="treat short branches as all others",
    )
    group.add_argument("--cuda-graphs", action="store_const", const=True, help="record and replay forwards on a GPU")
    _add_number(group, "--max-graphs", "graphs kept")
    _add_number(group, "--graph-budget-mb", "MiB that kept graphs may hold")
    group.add_argument("--graph-keys", metavar="exact|bucketed", help=_default("graph_keys"))
    # Not click: an option there takes a fixed number of values.
    group.add_argument("--fused-kernels", nargs="+", metavar="KERNEL", help=f"any of {', '.join(KERNELS)}")
    group.add_argument("--strict", action="store_const", const=True, help="an error instead of any fallback")


def _add_warmup(group: argparse._ArgumentGroup) -> None:
    warmup = group.add_mutually_exclusive_group()
    warmup.add_argument(
        "--warmup", dest="warmup", action="store_const", const=True, help="run once before the first request"
    )
    warmup.add_argument(
        "--no-warmup",
        dest="warmup",
        action="store_const",
        const=False,
        help="do not (default: only with --interactive, batch and serve)",
    )


def _add_scoring(group: argparse._ArgumentGroup) -> None:
    """Add the flags of prompts and scores."""
    group.add_argument("--prompt-format", metavar="auto|delimited|readable|json", help="layout of the prompt")
    group.add_argument("--answer-encoding", metavar="auto|letters|labels", help="what the model answers with")
    _add_number(group, "--max-label-tokens", "tokens of one label")
    group.add_argument("--temperature", type=_decimal_number, metavar="X", help=_default("temperature"))
    group.add_argument("--stable", action="store_const", const=True, help="score near ties again, alone and in fp32")
    group.add_argument("--calibration", type=path, metavar="FILE", help="not in this version")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output", type=output_path, metavar="F", help="also write the result to a JSON file")
    group.add_argument("--json", action="store_true", help="print JSON on a terminal too")
    group.add_argument("--version", action="version", version=f"jevify {__version__}", help="print the version")


def _add_number(group: argparse._ArgumentGroup, flag: str, text: str) -> None:
    field = flag.removeprefix("--").replace("-", "_")
    group.add_argument(flag, type=whole_number, metavar="N", help=_default(field, text))


def _default(field: str, text: str = "") -> str:
    return f"{text} (default: {getattr(DecideSettings, field)})".strip()


def _refuse_unbuilt(args: argparse.Namespace) -> None:
    """Raise SettingError for a flag of a later version."""
    for name in ("calibration", "adapter"):
        if getattr(args, name) is not None:
            raise SettingError(f"--{name} is not in this version; leave it out")


def _check_source(args: argparse.Namespace) -> None:
    given = [_flag(name) for name in SOURCES if getattr(args, name) is not None]
    if not given:
        raise InputError(
            "there is no text to decide about: give --context TEXT, --context-file FILE (- for standard input), "
            "--request FILE, --input FILE or --interactive\nsee jevify --help"
        )
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} each say where the text comes from: keep one")
    source = given[0]
    if args.prompt is not None and source not in ("--context", "--context-file"):
        instead = {
            "--request": 'write "prompt" in the request file',
            "--input": 'write "instructions" in the input file',
            "--interactive": "it is asked for after /run",
        }[source]
        raise InputError(f"--prompt goes with --context or --context-file; with {source}, {instead}")
    if args.workflow is not None and source == "--input":
        raise InputError("--input brings its own questions: leave --workflow out")
    if args.output is not None and source == "--interactive":
        raise InputError("--output holds one result and --interactive gives many: leave one of them out")


def _check_mode(args: argparse.Namespace) -> None:
    """Raise SettingError where --mode and --executor contradict each other."""
    if args.mode is None or args.executor is None:
        return
    if (args.mode == "independent") != (args.executor == "independent"):
        raise SettingError(
            f"--mode {args.mode} contradicts --executor {args.executor}: keep one of them, or make them agree"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
