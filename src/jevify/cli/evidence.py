"""`jevify evidence mutate`: plant faults one at a time and see that validation rejects each."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jevify.cli.arguments import output_path, path
from jevify.cli.output import printing
from jevify.errors import InputError
from jevify.evidence.gates import FILE, load_gates
from jevify.evidence.mutation.fault import all_faults, named_faults
from jevify.evidence.mutation.table import markdown, read_mutations
from jevify.evidence.store import check_output, write_json

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add `evidence`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("evidence", help="plant faults and see that validation rejects them")
    parser.add_argument("action", choices=("mutate",), help="mutate: plant faults, each in a process of its own")
    parser.add_argument("--fault", nargs="+", metavar="NAME", help="these faults only")
    parser.add_argument("--list", action="store_true", help="print the names of the faults and what each does")
    parser.add_argument("--show", type=path, metavar="FILE", help="print the table of a stored run")
    parser.add_argument("--gates", type=path, default=FILE, metavar="F", help=f"the thresholds (default: {FILE})")
    parser.add_argument("--output", type=output_path, metavar="F", help="store the result as JSON")
    parser.add_argument("--force", action="store_true", help="replace the output file when it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say; 1 when a fault got through or the clean build was rejected. Raises JevifyError."""
    _check(args)
    if args.list:
        with printing():
            for fault in all_faults():
                print(f"{fault.name}\t{fault.says}")
        return 0
    if args.show is not None:
        _print(read_mutations(args.show))
        return 0
    return _mutate(args)


def _check(args: argparse.Namespace) -> None:
    if args.list and args.show is not None:
        raise InputError("give one of --list and --show FILE")
    if (args.list or args.show is not None) and (args.fault is not None or args.output is not None):
        raise InputError("--fault and --output act on a run; leave out --list and --show")
    if args.force and args.output is None:
        raise InputError("--force acts on --output FILE; give both or neither")


def _mutate(args: argparse.Namespace) -> int:
    faults = all_faults() if args.fault is None else named_faults(args.fault)
    gates = load_gates(args.gates)
    if args.fault is None and len(faults) < gates.mutation.least_faults:
        raise InputError(f"there are {len(faults)} faults, and {args.gates} wants {gates.mutation.least_faults:g}")
    if args.output is not None:
        check_output(args.output, replace=args.force)
    from jevify.evidence.mutation.run import accepted, run_mutations

    result = run_mutations(
        faults,
        gates.mutation,
        Path(args.gates).resolve(),
        command=shlex.join(["jevify", *args.words]),
        progress=lambda done, total, text: print(f"{done}/{total} {text}", file=sys.stderr, flush=True),
    )
    try:
        if args.output is not None:
            write_json(args.output, result, replace=args.force)
    finally:
        # A full disk takes the file, not the table.
        _print(result)
    return 0 if accepted(result) else 1


def _print(result: dict[str, Any]) -> None:
    with printing():
        print(markdown(result), end="")
