"""`jevify validate decide`: hold an engine against its fp32 oracle, and tiny models against transformers."""

import argparse
import os
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jevify.cli.arguments import (
    add_engine_flags,
    check_engine_flags,
    output_path,
    path,
    whole_number,
)
from jevify.cli.decide import check_settings, settings_of
from jevify.cli.loading import holding_interrupts, load_engine, silence
from jevify.cli.output import printing
from jevify.errors import InputError, SettingError
from jevify.evidence.gates import FILE, Gates, load_gates
from jevify.evidence.store import check_output, json_text, write_json
from jevify.evidence.validate.quality import SAMPLE, read_sample

if TYPE_CHECKING:
    from jevify.evidence.validate.check import Outcome

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add `validate`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("validate", help="hold an engine against its oracle")
    parser.add_argument("workload", choices=("decide",), help="what to validate")
    parser.add_argument("--tiny", action="store_true", help="only the checks on tiny random models")
    parser.add_argument("--data", type=path, metavar="F", help=f"labelled rows, JSON lines (default: {SAMPLE})")
    parser.add_argument("--rows", type=whole_number, metavar="N", help="so many of the labelled rows, spread over them")
    parser.add_argument("--gates", type=path, default=FILE, metavar="F", help=f"the thresholds (default: {FILE})")
    parser.add_argument("--output", type=output_path, metavar="F", help="store the result as JSON")
    parser.add_argument("--force", action="store_true", help="replace the output file when it exists")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    add_engine_flags(parser, warmup=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Validate as the arguments say and return the exit code: 1 when a check failed. Raises JevifyError."""
    settings = _checked(args)
    gates = load_gates(args.gates)
    if args.output is not None:
        check_output(args.output, replace=args.force)
    _choose_interpreter()
    engine, subject, found = None, {}, None
    if not args.tiny:
        sample = read_sample(args.data or SAMPLE, args.rows)
        engine = load_engine(
            args.model,
            revision=args.revision,
            local_files_only=args.local_files_only,
            device=args.device,
            dtype=args.dtype,
            **settings,
        )
    tiny = _tiny(gates)
    from jevify.evidence.validate.result import failed, markdown, validation

    if engine is not None:
        from jevify.evidence.validate.engine import validate_engine

        subject = _subject(engine)
        if subject["dtype"] not in gates.quality:
            raise InputError(f"{args.gates}: has no [quality.{subject['dtype']}]; add it")
        found = validate_engine(engine, sample, gates.quality[subject["dtype"]], progress=_tell)
    result = validation(shlex.join(["jevify", *args.words]), subject=subject, tiny=tiny, engine=found)
    try:
        if args.output is not None:
            write_json(args.output, result, replace=args.force)
    finally:
        # A full disk takes the file, not the table.
        with printing():
            print(json_text(result) if args.json else markdown(result), end="")
    for name in failed(result):
        print(f"jevify: check failed: {name}", file=sys.stderr)
    return 1 if failed(result) else 0


def _checked(args: argparse.Namespace) -> dict[str, Any]:
    check_engine_flags(args)
    if args.force and args.output is None:
        raise InputError("--force acts on --output FILE; give both or neither")
    if args.rows is not None and args.rows < 1:
        raise InputError(f"--rows is {args.rows}; use a whole number of at least 1")
    settings = settings_of(args)
    if args.tiny and (settings or args.data is not None or args.rows is not None):
        raise InputError("--tiny loads no model: engine flags, --data and --rows have no effect on it")
    check_settings(settings, args.device, args.model)
    return settings


def _choose_interpreter() -> None:
    """Let kernels run in Triton's interpreter where there is no GPU; Triton asks once, when it is imported."""
    with holding_interrupts():
        import torch
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def _tiny(gates: Gates) -> "list[Outcome]":
    from jevify.evidence.validate.interpreter import repair
    from jevify.evidence.validate.suite import kernels_missing, run_tiny

    if reason := kernels_missing():
        raise SettingError(f"the checks of kernels cannot run: {reason}")
    silence()
    repair()
    return run_tiny(gates, _tell)


def _subject(engine: Any) -> dict[str, Any]:
    metadata = engine.decide("Late.", {"late": {"type": "noul", "instructions": "Is it late?"}})["metadata"]
    told = {name: metadata[name] for name in ("device", "dtype", "revision")}
    return {"model": engine.name, "executor": engine.settings.executor, **told, "settings": asdict(engine.settings)}


def _tell(done: int, total: int, text: str) -> None:
    """A line on stderr each tenth of the way."""
    if total and (10 * done // total != 10 * (done - 1) // total or not done):
        print(f"{done}/{total} {text}".rstrip(), file=sys.stderr, flush=True)
