"""From flags to what is decided: the files are read and checked, no model is needed."""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jevify.decide.jsonpath import quoted
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
    if args.request is None:
        _check_prompt(workflow, args.prompt)
    context, workflow = _request(args).resolve(workflow)
    return Job(context, workflow)


def read_workflow(path: Path | None) -> Workflow:
    """The workflow file, `./workflow.json` when none is named. Raises InputError."""
    named, path = path is not None, path or DEFAULT_WORKFLOW
    if not os.path.exists(path):
        where = "" if named else " in this folder"
        raise InputError(
            f"{path}: there is no such file{where}: give the questions with --workflow FILE "
            "(jevify schema workflow prints its form)"
        )
    return Workflow.load(path)


def inputs(args: argparse.Namespace) -> list[Path | int]:
    """The files that the flags name as input; standard input is the descriptor 0."""
    files = [args.request, args.input, 0 if args.context_file == "-" else args.context_file]
    if args.input is None:
        files.append(args.workflow or DEFAULT_WORKFLOW)
    return [file if file == 0 else Path(file) for file in files if file is not None]


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


def _check_prompt(workflow: Workflow, prompt: str | None) -> None:
    """Tell what is wrong with the prompt in terms of the command line; a request would name its own fields."""
    questions = workflow.questions
    if prompt is not None:
        if not prompt.strip():
            raise InputError("--prompt: is empty: write what to ask")
        if len(questions) > 1:
            raise InputError(
                f"--prompt: asks the only question of a workflow, and this one has {len(questions)}: write "
                f'"prompts" into a file for --request FILE, with the ids {", ".join(map(quoted, questions))}'
            )
        return
    say = 'say it with --prompt TEXT or in "prompts" of a file for --request FILE'
    if len(questions) > 1:
        say = 'say it in "prompts" of a file for --request FILE'
    problems = [
        f"question {quoted(name)} has neither instructions nor described options, so that nothing is asked: {say}, "
        'or add "instructions" to it in the workflow'
        for name, question in questions.items()
        if question.needs_prompt
    ]
    if problems:
        raise InputError("\n".join(problems))


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
