"""From flags to what is decided: the files are read and checked, no model is needed."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jevify.decide.jsontext import read_text
from jevify.decide.request import Combined, Request
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

DEFAULT_WORKFLOW = Path("workflow.json")


@dataclass(frozen=True)
class Job:
    """One request, checked: its context, its questions with the prompts applied, and the labels expected."""

    context: Any
    workflow: Workflow
    expected: Mapping[str, str] | None = None


def read_job(args: argparse.Namespace) -> Job:
    """The request that the flags name. Raises InputError for what cannot be read or is not accepted."""
    if args.input is not None:
        combined = Combined.load(args.input)
        context, workflow = combined.resolve()
        return Job(context, workflow, combined.expected_labels)
    workflow = read_workflow(args.workflow)
    context, workflow = _request(args).resolve(workflow)
    return Job(context, workflow)


def read_workflow(path: Path | None) -> Workflow:
    """The workflow file, `./workflow.json` when none is named. Raises InputError."""
    named, path = path is not None, path or DEFAULT_WORKFLOW
    if not path.exists():
        where = "" if named else " in this folder"
        raise InputError(
            f"{path}: there is no such file{where}: give the questions with --workflow FILE "
            "(jevify schema workflow prints its form)"
        )
    return Workflow.load(path)


def paths_read(args: argparse.Namespace) -> list[Path]:
    """The files that the flags name as input."""
    files = [args.request, args.input, args.context_file if args.context_file != "-" else None]
    if args.input is None:
        files.append(args.workflow or DEFAULT_WORKFLOW)
    return [Path(file) for file in files if file is not None]


def _request(args: argparse.Namespace) -> Request:
    if args.request is not None:
        return Request.load(args.request)
    if args.context is not None:
        text, where = args.context, "--context"
    elif args.context_file == "-":
        text, where = _standard_input(), "standard input"
    else:
        text, where = read_text(args.context_file), args.context_file
    if not text.strip():
        raise InputError(f"{where}: is empty: give the text to decide about")
    return Request.parse({"context": text, "prompt": args.prompt}, "command line")


def _standard_input() -> str:
    if sys.stdin is None:
        raise InputError("--context-file -: standard input is closed")
    if sys.stdin.isatty():
        print("Type or paste the text; Ctrl-D on an empty line ends it.", file=sys.stderr)
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input: not UTF-8 text (byte {error.start} cannot be read): convert it to UTF-8"
        ) from None
