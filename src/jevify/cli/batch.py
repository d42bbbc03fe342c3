"""`jevify batch IN OUT`: decide about every row of a file, and go on where a killed run stopped."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jevify.bulk.files import Files, beside, is_parquet
from jevify.bulk.journal import Journal
from jevify.bulk.jsonl import JsonlSource
from jevify.bulk.parquet import ParquetSource, need_pyarrow, write_parquet
from jevify.bulk.rows import RowReader, Source, Survey
from jevify.bulk.run import Outcome, Run
from jevify.bulk.state import State, check_same, earlier_state
from jevify.cli.arguments import add_engine_flags, check_engine_flags, output_path, path, whole_number
from jevify.cli.decide import check_number, check_settings, load, mode_of, settings_of, warm_up
from jevify.cli.loading import waiting
from jevify.cli.output import printing
from jevify.cli.rows_progress import watching_rows
from jevify.cli.sources import DEFAULT_WORKFLOW, read_workflow
from jevify.decide.workflow import Workflow
from jevify.errors import InputError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

INTERRUPTED = 130
BATCH_TOKENS = 8_192
"""One pass of the packed executor at its default budget."""


def add_parser(subparsers: "Subparsers") -> None:
    """Add `batch`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("batch", help="decide about every row of a file")
    parser.add_argument("source", type=_source_path, metavar="IN", help="JSONL, or Parquet when it ends in .parquet")
    parser.add_argument("target", type=output_path, metavar="OUT", help="JSONL, or Parquet when it ends in .parquet")
    parser.add_argument(
        "--workflow", type=path, metavar="F", help="the questions, a JSON file (default: ./workflow.json)"
    )
    parser.add_argument(
        "--batch-tokens",
        type=whole_number,
        default=BATCH_TOKENS,
        metavar="N",
        help=f"tokens of the rows decided together (default: {BATCH_TOKENS})",
    )
    parser.add_argument(
        "--rejects", type=output_path, metavar="FILE", help="rows set aside (default: OUT.rejects.jsonl)"
    )
    parser.add_argument("--strict-rows", action="store_true", help="exit code 1 when a row was set aside")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on where the run before stopped, if there was one")
    again.add_argument("--force", action="store_true", help="start over; what the run before wrote is lost")
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decide about every row and return the exit code.

    0: every row is decided or set aside. 1: a row was set aside under --strict-rows. 130: interrupted. Raises
    JevifyError.
    """
    check_engine_flags(args)
    if not 1 <= args.batch_tokens <= 2**24:
        raise InputError(f"--batch-tokens is {args.batch_tokens}; use a whole number from 1 to {2**24}")
    settings = settings_of(args)
    limit = check_settings(settings, args.device, args.model)
    workflow = read_workflow(args.workflow)
    check_number(workflow, limit)
    files = Files(args.source, args.target, args.rejects or beside(args.target, ".rejects.jsonl"))
    files.check(args.workflow or DEFAULT_WORKFLOW)
    with files.locked():
        return _run(_Job(args, settings, workflow, files))


@dataclass(frozen=True)
class _Job:
    args: argparse.Namespace
    settings: dict[str, Any]
    workflow: Workflow
    files: Files


def _run(job: _Job) -> int:
    args, files = job.args, job.files
    earlier = earlier_state(files, resume=args.resume, force=args.force)
    if files.parquet:
        need_pyarrow(files.output)
    source: Source = ParquetSource(files.source) if is_parquet(files.source) else JsonlSource(files.source)
    with waiting(f"Reading {files.source}"):
        survey = source.survey()
    of: dict[str, Any] = {
        "input": survey.sha256,
        "workflow": job.workflow.digest(),
        "rejects": files.rejects.name,
    }
    if earlier is not None:
        check_same(files.output, earlier, of)
        if earlier.finished:
            return _finished_before(args, files, earlier)
    engine = load(args, job.settings)
    of["engine"] = engine.identity()
    if earlier is not None:
        check_same(files.output, earlier, of)
    if args.warmup is not False:
        warm_up(engine, job.workflow)
    if args.force:
        for written in files.written:
            written.unlink(missing_ok=True)
    return _decide(job, engine, source, survey, earlier or State(of))


def _decide(job: _Job, engine: Any, source: Source, survey: Survey, state: State) -> int:
    args, files = job.args, job.files
    reader = RowReader(job.workflow)
    with Journal(files, state) as journal:
        with watching_rows(state.row, survey.rows) as watcher, _interrupts(watcher.note) as stopped:
            # So that a run which is killed before its first group can be gone on with too.
            journal.commit()
            outcome = Run(engine, reader, journal, args.batch_tokens, mode_of(args), watcher, stopped)(source)
        if outcome.interrupted:
            _notice(f"interrupted after row {journal.state.row:,} of {survey.rows:,}: go on with --resume")
            return INTERRUPTED
        with waiting(f"Checking {files.source}"):
            if source.survey() != survey:
                raise InputError(f"{files.source}: was changed during the run: use --force to start over")
        if files.parquet:
            with waiting(f"Writing {files.output}"):
                write_parquet(files.answers, files.output, job.workflow, journal.state)
        journal.finish()
    if files.parquet:
        files.answers.unlink(missing_ok=True)
    if unread := dict.fromkeys([*survey.unread, *reader.unread]):
        _notice(f'fields that are not read: {", ".join(list(unread)[:8])}; find their rows by "row" or "id"')
    return _told(args, journal.state, outcome)


def _finished_before(args: argparse.Namespace, files: Files, state: State) -> int:
    if not files.output.exists():
        raise InputError(f"{files.output}: this run is finished, and its output is gone: --force starts over")
    if files.parquet:
        # Left behind by a run that was killed after its last step but one.
        files.answers.unlink(missing_ok=True)
    return _told(args, state, None)


def _told(args: argparse.Namespace, state: State, outcome: Outcome | None) -> int:
    """Print what there is now; `outcome` is what this run did, None when nothing was left to do."""
    with printing():
        print(f"{state.decided:,} rows decided, {state.set_aside:,} set aside" + _rates(outcome))
    return 1 if args.strict_rows and state.set_aside else 0


def _rates(outcome: Outcome | None) -> str:
    if outcome is None:
        return "; nothing was left to do"
    rows, seconds = outcome.decided + outcome.set_aside, max(outcome.seconds, 1e-9)
    rates = f"{rows / seconds:,.1f} rows/s, {outcome.tokens / seconds:,.0f} tokens/s"
    failed = f"; {outcome.by_row:,} groups failed and were decided row by row" if outcome.by_row else ""
    return f"; {rows:,} rows in {seconds:,.1f} s, {rates}{failed}"


@contextmanager
def _interrupts(note: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; a second one raises KeyboardInterrupt at once."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    pressed = []

    def hold(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # The handler may have come between two halves of another line.
        with suppress(RuntimeError):
            note("the rows at hand are decided first; Ctrl-C again stops at once")

    signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _source_path(word: str) -> Path:
    """The type of IN."""
    if word == "-":
        raise argparse.ArgumentTypeError("-: give a file; a stream could not be gone on with")
    return path(word)


def _notice(text: str) -> None:
    print(f"jevify: {text}", file=sys.stderr)
