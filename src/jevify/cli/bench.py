"""`jevify bench SCENARIO`: run a benchmark scenario and print its table, or print that of a stored run."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from jevify.cli.arguments import DTYPES, check_device, output_path, path, whole_number
from jevify.cli.decide import check_settings
from jevify.cli.loading import load_engine
from jevify.cli.output import printing
from jevify.errors import InputError, JevifyError
from jevify.evidence.kinds.base import BOUNDS, ModelScenario, Scenario
from jevify.evidence.scenario import FOLDER, find_scenario, load_scenario, scenario_files
from jevify.evidence.store import check_output, read_result, write_json

if TYPE_CHECKING:
    from jevify.evidence.kinds.base import Progress

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add `bench`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("bench", help="measure candidates beside a baseline")
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help=f"a name in {FOLDER}/, or the path of a TOML file"
    )
    parser.add_argument("--output", type=output_path, metavar="FILE", help="store the run as JSON")
    parser.add_argument("--force", action="store_true", help="replace the output file when it exists")
    parser.add_argument("--resume", action="store_true", help="go on with the interrupted run in the output file")
    parser.add_argument(
        "--repeats", type=whole_number, metavar="N", help="timed rounds a case, instead of the scenario's"
    )
    parser.add_argument("--list", action="store_true", help=f"the scenarios in {FOLDER}/")
    parser.add_argument("--show", type=path, nargs="+", metavar="FILE", help="print the tables of stored runs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, load: Callable[[ModelScenario], Any] | None = None) -> int:
    """Do what the arguments say and return the exit code: 1 when an arm failed or the run was interrupted.

    `load` takes the place of the loader of the scenario's model. Raises InputError.
    """
    _check(args)
    if args.list:
        return _list()
    if args.show is not None:
        return _show_all(args.show)
    return _bench(args, load)


def _check(args: argparse.Namespace) -> None:
    chosen = [args.scenario is not None, args.list, args.show is not None]
    if sum(chosen) != 1:
        raise InputError("give one of SCENARIO, --list and --show FILE")
    if args.scenario is None and (args.output is not None or args.repeats is not None):
        raise InputError("--output and --repeats act on a run; give a SCENARIO with them")
    if args.force and args.output is None:
        raise InputError("--force acts on --output FILE; give both or neither")
    if args.resume and (args.output is None or args.force):
        raise InputError("--resume goes on with the run in --output FILE, which it does not replace: leave out --force")
    low, high = BOUNDS["repeats"]
    if args.repeats is not None and not low <= args.repeats <= (high or args.repeats):
        raise InputError(f"--repeats is {args.repeats}; use a whole number from {low} to {high:,}")


def _list() -> int:
    scenarios = [(file.stem, load_scenario(file).description) for file in scenario_files()]
    with printing():
        for name, description in scenarios:
            print(f"{name}\t{description}")
    return 0


def _show_all(stored: list[Path]) -> int:
    results = [read_run(path) for path in stored]
    for index, result in enumerate(results):
        if index:
            with printing():
                print()
        print_result(result)
    return 0


def read_run(stored: Path) -> dict[str, Any]:
    """A stored run that can be printed. Raises InputError."""
    from jevify.evidence.report import markdown

    result = read_result(stored)
    try:
        markdown(result)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{stored}: not the whole result of a benchmark run ({type(error).__name__}: {error})"
        ) from error
    return result


def _bench(args: argparse.Namespace, load: Callable[[ModelScenario], Any] | None) -> int:
    scenario = load_scenario(find_scenario(args.scenario))
    check_scenario(scenario)
    stored = read_run(args.output) if args.resume else None
    if args.output is not None:
        check_output(args.output, replace=args.force or args.resume)
    if args.repeats is not None:
        scenario = dataclasses.replace(scenario, repeats=args.repeats)
    return measure(
        scenario, _command(args), args.output, replace=args.force or args.resume, load=load or _load, stored=stored
    )


def measure(
    scenario: Scenario,
    command: str,
    output: Path | None,
    *,
    replace: bool,
    load: Callable[[ModelScenario], Any],
    stored: Mapping[str, Any] | None = None,
) -> int:
    """Run a scenario, or the rest of a stored run of it, store it and print its tables; the exit code as of `run`.

    replace: whether a file at `output` may be replaced. The file is written after every case.
    """
    # The model before torch, so that one that is not here is told at once.
    engine = load(scenario) if isinstance(scenario, ModelScenario) else None
    from jevify.evidence.bench import failures, run_benchmark

    written = replace

    def store(result: dict[str, Any]) -> None:
        nonlocal written
        if output is not None:
            write_json(output, result, replace=written)
            written = True

    def store_so_far(result: dict[str, Any]) -> None:
        # What cannot be written now is told by the last write, and takes no measurement with it.
        with suppress(JevifyError):
            store(result)

    with _progress() as progress:
        result = run_benchmark(
            scenario,
            command=command,
            load=lambda scenario: engine,
            progress=progress,
            store=store_so_far,
            stored=stored,
        )
    try:
        store(result)
    finally:
        # A full disk takes the file, not the table.
        print_result(result)
    return 1 if result["interrupted"] or failures(result) else 0


def check_scenario(scenario: Scenario) -> None:
    """Refuse, before anything is loaded, what no device of the scenario can do."""
    try:
        check_device(scenario.device)
        if scenario.dtype not in DTYPES:
            raise InputError(f"dtype is {scenario.dtype!r}; use one of {', '.join(DTYPES)}")
        if isinstance(scenario, ModelScenario):
            for arm in scenario.arms:
                limit = check_settings(arm.settings, scenario.device, scenario.model)
                if scenario.most_questions > limit:
                    raise InputError(f"{arm.name} takes {limit} questions at most: raise its max_questions")
    except InputError as error:
        raise InputError(f"scenario {scenario.name}: {error}") from error


def _load(scenario: ModelScenario) -> Any:
    return load_engine(scenario.model, device=scenario.device, dtype=scenario.dtype)


def _command(args: argparse.Namespace) -> str:
    words = ["jevify", "bench", args.scenario]
    if args.repeats is not None:
        words += ["--repeats", str(args.repeats)]
    if args.output is not None:
        words += ["--output", str(args.output)]
    words += [flag for flag, given in (("--force", args.force), ("--resume", args.resume)) if given]
    return shlex.join(words)


def print_result(result: dict[str, Any]) -> None:
    """Print a run: tables on a terminal, Markdown in a pipe."""
    from jevify.evidence.report import markdown, show

    console = Console()
    with printing():
        if console.is_terminal:
            show(result, console)
        else:
            print(markdown(result), end="")


@contextmanager
def _progress() -> "Iterator[Progress]":
    """A bar on a terminal, a line each tenth of the way elsewhere; both on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _tenths()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bars:
        task = bars.add_task("loading", total=None)
        yield lambda done, total, text: bars.update(task, completed=done, total=total, description=text)


def _tenths() -> "Progress":
    last = -1

    def tell(done: int, total: int, text: str) -> None:
        nonlocal last
        if (tenth := 10 * done // total) != last:
            last = tenth
            print(f"{done}/{total} {text}".rstrip(), file=sys.stderr, flush=True)

    return tell
