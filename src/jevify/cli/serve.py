"""`jevify serve`: decisions over HTTP."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jevify.cli.arguments import add_engine_flags, check_engine_flags, path, whole_number
from jevify.cli.decide import check_settings, settings_of
from jevify.cli.loading import holding_interrupts, load_engine
from jevify.decide.jsontext import read_text
from jevify.decide.settings import DecideSettings
from jevify.decide.workflow import Workflow
from jevify.errors import InputError, SettingError
from jevify.serve.limits import ServeLimits

if TYPE_CHECKING:
    from jevify.engine import DecisionEngine

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

HOST, PORT = "127.0.0.1", 8600

_LIMITS = {
    "--body-bytes": "of one request, compressed or not",
    "--body-ms": "for a body to arrive",
    "--queue-requests": "requests that may wait",
    "--queue-tokens": "tokens that may wait",
    "--batch-requests": "requests in one batch",
    "--deadline-ms": "from a request to its reply",
    "--stall-ms": "before a batch that does not end makes the server not ready",
    "--drain-ms": "of telling new requests 503 after SIGTERM",
    "--connections": "open at once",
}


def add_parser(subparsers: "Subparsers") -> None:
    """Add the `serve` command."""
    parser = subparsers.add_parser("serve", help="answer over HTTP")
    group = parser.add_argument_group("server")
    group.add_argument(
        "--workflow",
        type=path,
        metavar="F",
        action="append",
        default=[],
        help="a rubric to store under its file's name, or a folder of them; may be given several times",
    )
    group.add_argument("--host", default=HOST, metavar="H", help=f"address to listen on (default: {HOST})")
    group.add_argument("--port", type=whole_number, default=PORT, metavar="N", help=f"default: {PORT}; 0: any free")
    keys = group.add_mutually_exclusive_group()
    keys.add_argument("--api-key", metavar="K", help="what clients must send; other users of this machine can see it")
    keys.add_argument("--api-key-file", type=path, metavar="F", help="a file with one key a line")
    for flag, text in _LIMITS.items():
        default = getattr(ServeLimits, flag.removeprefix("--").replace("-", "_"))
        group.add_argument(flag, type=whole_number, metavar="N", help=f"{text} (default: {default})")
    for flag, field in (("--max-questions", "max_questions"), ("--max-question-tokens", "max_question_tokens")):
        text = f"of one request (default: {getattr(DecideSettings, field)})"
        group.add_argument(flag, type=whole_number, metavar="N", help=text)
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; returns 0. Everything that needs no model is checked before one loads."""
    check_engine_flags(args)
    if not 0 <= args.port <= 65_535:
        raise InputError(f"--port is {args.port}; use a number from 0 to 65535")
    if args.mode is None and args.executor is None:
        # Only this one answers several requests in one pass.
        args.executor = "packed"
    settings = settings_of(args)
    most = check_settings(settings, args.device, args.model)
    with _extra():
        from jevify.serve.access import Access

    access = Access(_keys(args), args.host)
    workflows = read_workflows(args.workflow, most)
    given = {entry.name: getattr(args, entry.name, None) for entry in fields(ServeLimits)}
    budget = {"batch_tokens": settings.get("token_budget", DecideSettings.token_budget)}
    limits = ServeLimits(**budget, **{name: value for name, value in given.items() if value is not None})
    with _extra(), holding_interrupts():
        from jevify.serve.server import serve  # Imports torch.
    serve(
        partial(_load, args, settings, workflows),
        model=args.model,
        workflows=workflows,
        access=access,
        limits=limits,
        host=args.host,
        port=args.port,
    )
    return 0


def read_workflows(places: list[Path], most_questions: int) -> dict[str, Workflow]:
    """Workflows by the name of their file, without its ending; of a folder, all its .json files.

    Raises InputError for a file that is none, names that repeat, questions that ask nothing, and too many questions.
    """
    files: list[Path] = []
    for place in places:
        found = sorted(place.glob("*.json")) if place.is_dir() else [place]
        if not found:
            raise InputError(f"{place}: holds no .json file")
        files += found
    workflows: dict[str, Workflow] = {}
    for file in files:
        if file.stem in workflows:
            raise InputError(f"{file}: there is a workflow named {file.stem} already: rename one")
        workflow = Workflow.load(file)
        for name, question in workflow.questions.items():
            if question.needs_prompt:
                raise InputError(f"{file}: question {name} has neither instructions nor described options: add some")
        if len(workflow.questions) > most_questions:
            raise InputError(
                f"{file}: has {len(workflow.questions)} questions, and the limit is {most_questions}; "
                "raise --max-questions"
            )
        workflows[file.stem] = workflow
    return workflows


@contextmanager
def _extra() -> Iterator[None]:
    """Around imports of what comes with the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingError(f"serve needs {error.name}, which is not here: pip install 'jevify[serve]'") from None


def _keys(args: argparse.Namespace) -> list[str]:
    if args.api_key is not None:
        return [args.api_key]
    if args.api_key_file is None:
        return []
    keys = [line.strip() for line in read_text(args.api_key_file).splitlines() if line.strip()]
    if not keys:
        raise InputError(f"{args.api_key_file}: holds no key: write one a line")
    return keys


def _load(args: argparse.Namespace, settings: dict[str, Any], workflows: dict[str, Workflow]) -> "DecisionEngine":
    engine = load_engine(
        args.model,
        revision=args.revision,
        local_files_only=args.local_files_only,
        device=args.device,
        dtype=args.dtype,
        **settings,
    )
    if args.warmup is not False:
        engine.warmup(questions=next(iter(workflows.values()), None))
    return engine
