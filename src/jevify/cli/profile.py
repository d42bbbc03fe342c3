"""`jevify profile decide`: where the time of warm decisions goes, stage by stage and kernel by kernel."""

import argparse
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jevify.cli.arguments import add_engine_flags, check_engine_flags, output_path, whole_number
from jevify.cli.bench import measure
from jevify.cli.decide import check_settings, settings_of
from jevify.cli.loading import load_engine
from jevify.decide.settings import DecideSettings
from jevify.errors import InputError
from jevify.evidence.fields import check_numbers
from jevify.evidence.kinds.base import BOUNDS, Arm, ModelScenario, parse_case
from jevify.evidence.kinds.profile.scenario import ProfileScenario
from jevify.evidence.store import check_output

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

WORKLOADS = ("decide", "world")
_SIZE = {"prefix_tokens": 250, "question_tokens": 80, "questions": 4}
_REPEATS = 10
_WARMUP = 2
_SEED = 20260


def add_parser(subparsers: "Subparsers") -> None:
    """Add `profile`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("profile", help="where the time of a decision goes")
    parser.add_argument("workload", choices=WORKLOADS, metavar="WORKLOAD", help="decide")
    size = parser.add_argument_group("request and rounds")
    for name, default in _SIZE.items():
        flag = "--" + name.replace("_", "-")
        size.add_argument(flag, type=whole_number, default=default, metavar="N", help=f"(default: {default})")
    size.add_argument(
        "--repeats", type=whole_number, default=_REPEATS, metavar="N", help=f"timed decisions (default: {_REPEATS})"
    )
    told = parser.add_argument_group("what is told")
    told.add_argument("--kernels", action="store_true", help="also a table of kernels, on a CPU of operators")
    told.add_argument("--trace", type=output_path, metavar="FILE", help="the profiler's chrome trace")
    told.add_argument("--output", type=output_path, metavar="FILE", help="store the run as JSON")
    told.add_argument("--force", action="store_true", help="replace the files when they exist")
    add_engine_flags(parser, warmup=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, load: Callable[[ModelScenario], Any] | None = None) -> int:
    """Profile as the arguments say and return the exit code: 1 when settings were not what ran, or an interrupt came.

    `load` takes the place of the loader of the model. Raises JevifyError.
    """
    if args.workload == "world":
        raise InputError("profile world: streams are not in this version, so there is none to profile; use decide")
    scenario = _scenario(args)
    settings = scenario.candidates[0].settings
    check_settings(settings, args.device, args.model)
    if args.force and args.output is None and args.trace is None:
        raise InputError("--force acts on --output and --trace; leave it out")
    for file in (args.output, args.trace):
        if file is not None:
            check_output(file, replace=args.force)

    def load_with_settings(scenario: ModelScenario) -> Any:
        return load_engine(
            args.model,
            revision=args.revision,
            local_files_only=args.local_files_only,
            device=args.device,
            dtype=args.dtype,
            **settings,
        )

    command = shlex.join(["jevify", *args.words])
    return measure(scenario, command, args.output, replace=args.force, load=load or load_with_settings)


def _scenario(args: argparse.Namespace) -> ProfileScenario:
    check_engine_flags(args)
    check_numbers({"repeats": args.repeats}, BOUNDS, "profile")
    case = parse_case({name: getattr(args, name) for name in _SIZE}, "profile")
    settings = settings_of(args)
    # What only refuses large requests has nothing to refuse here.
    room = {"max_questions": case.questions, "max_question_tokens": case.prefix_tokens + 2 * case.question_tokens}
    grown = {name: value for name, value in room.items() if value > getattr(DecideSettings, name)}
    return ProfileScenario(
        name="profile",
        kind="profile",
        seed=_SEED,
        repeats=args.repeats,
        warmup=_WARMUP,
        dtype=args.dtype,
        device=args.device,
        model=args.model,
        cases=(case,),
        candidates=(Arm(settings.get("executor", "default executor"), {**settings, **grown}),),
        kernels=args.kernels,
        trace="" if args.trace is None else str(args.trace),
    )
