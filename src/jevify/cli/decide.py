"""The main job: check everything, load the model, decide, print."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from rich.console import Console

from jevify.cli.interactive import interact
from jevify.cli.loading import load_engine, waiting
from jevify.cli.output import printing
from jevify.cli.render import show
from jevify.cli.sources import Job, inputs, read_job, read_workflow
from jevify.decide.answers import top_label
from jevify.decide.presets import preset_for
from jevify.decide.settings import DecideSettings
from jevify.decide.workflow import Workflow
from jevify.errors import InputError, SettingError
from jevify.evidence.store import check_output, json_text, write_json

Mode = Literal["parallel", "independent"]


def run(args: argparse.Namespace) -> int:
    """Decide as the arguments say and return the exit code; `args` come from `parse_decide`.

    Everything that needs no model is checked before one loads, and torch is not imported until then. Raises
    JevifyError.
    """
    settings = settings_of(args)
    limit = check_settings(settings, args.device, args.model)
    if args.interactive:
        return _interactive(args, settings, limit)
    job = read_job(args)
    check_number(job.workflow, limit)
    if args.output is not None:
        check_output(args.output, sources=inputs(args))
    if args.cuda_graphs:
        _notice("a graph captured in a one-shot run will not be reused; use --interactive or a resident engine")
    engine = load(args, settings)
    if args.warmup:
        warm_up(engine, job.workflow)
    decision = engine.decide(job.context, job.workflow, mode=mode_of(args))
    _give(args, decision, job)
    return 0


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The engine settings that the arguments name, as keywords of DecideSettings."""
    named = {entry.name for entry in fields(DecideSettings)}
    given = {name: value for name, value in vars(args).items() if name in named and value is not None}
    if args.mode == "independent":
        # So that a setting without effect on it is refused, as with --executor independent.
        given["executor"] = "independent"
    return given


def check_settings(settings: Mapping[str, Any], device: str, model: str) -> int:
    """Refuse what no device that `device` may stand for can do; returns the most questions of a request.

    Raises SettingError. Whether there is such a device is found out when the model loads.
    """
    wanted = DecideSettings(**settings)
    types: list[Literal["cpu", "cuda"]] = ["cuda", "cpu"]
    if device != "auto":
        types = ["cpu" if device == "cpu" else "cuda"]
    refusals = []
    for device_type in types:
        try:
            wanted.resolved(device_type, preset_for(model))
        except SettingError as error:
            refusals.append(error)
    if len(refusals) == len(types):
        raise refusals[-1]
    return wanted.max_questions


def evaluate(decision: Mapping[str, Any], expected: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By question id: the `expected` label, the most probable one as `answer`, and whether they `matched`."""
    answers = {name: top_label(decision["answers"][name]["probabilities"]) for name in expected}
    return {
        name: {"expected": label, "answer": answers[name], "matched": answers[name] == label}
        for name, label in expected.items()
    }


def _interactive(args: argparse.Namespace, settings: Mapping[str, Any], limit: int) -> int:
    workflow = read_workflow(args.workflow)
    check_number(workflow, limit)
    if sys.stdin is None:
        raise InputError("--interactive: standard input is closed")
    engine = load(args, settings)
    if args.warmup is not False:
        warm_up(engine, workflow)
    return interact(
        lambda context, asked: engine.decide(context, asked, mode=mode_of(args)),
        workflow,
        lambda decision: _print(args, decision, None),
        sys.stdin.buffer,
    )


def load(args: argparse.Namespace, settings: Mapping[str, Any]) -> Any:
    """The engine that the flags name, with `settings`. Raises JevifyError."""
    return load_engine(
        args.model,
        revision=args.revision,
        local_files_only=args.local_files_only,
        device=args.device,
        dtype=args.dtype,
        **settings,
    )


def warm_up(engine: Any, workflow: Workflow) -> None:
    """Warm the engine up for `workflow`, where every question of it can be asked as it stands."""
    with waiting("Warming up"):
        if any(question.needs_prompt for question in workflow.questions.values()):
            engine.warmup()
        else:
            engine.warmup(questions=workflow)


def mode_of(args: argparse.Namespace) -> Mode:
    """The mode that --mode or --executor names."""
    return "independent" if "independent" in (args.mode, args.executor) else "parallel"


def check_number(workflow: Workflow, limit: int) -> None:
    """Raise InputError for more questions than `limit`."""
    if len(workflow.questions) > limit:
        raise InputError(f"the request has {len(workflow.questions)} questions, and the limit is {limit}; split it")


def _give(args: argparse.Namespace, decision: Mapping[str, Any], job: Job) -> None:
    evaluation = None if job.expected is None else evaluate(decision, job.expected)
    result = dict(decision)
    if evaluation is not None:
        result["evaluation"] = evaluation
        result["matched"] = sum(outcome["matched"] for outcome in evaluation.values())
        result["total"] = len(evaluation)
    try:
        if args.output is not None:
            write_json(args.output, result)
    finally:
        # A full disk takes the file, not the answer.
        _print(args, result, evaluation)


def _print(
    args: argparse.Namespace,
    result: Mapping[str, Any],
    evaluation: Mapping[str, Mapping[str, Any]] | None,
) -> None:
    with printing():
        if args.json or not sys.stdout.isatty():
            print(json_text(result), end="")
        else:
            show(result, Console(), evaluation)


def _notice(text: str) -> None:
    print(f"jevify: {text}", file=sys.stderr)
