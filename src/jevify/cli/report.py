"""`jevify report`: stored runs as a page or as Markdown, and the tables of documents that stored runs fill."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jevify.cli.arguments import output_path, path
from jevify.cli.bench import read_run
from jevify.cli.output import printing, tell
from jevify.errors import InputError
from jevify.evidence.store import check_output, write_text

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add `report`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("report", help="draw stored runs, fill the tables of documents")
    parser.add_argument("runs", nargs="*", type=path, metavar="RUN", help="stored runs")
    parser.add_argument("--html", type=output_path, metavar="FILE", help="one page with plots that needs nothing else")
    parser.add_argument("--markdown", type=output_path, metavar="FILE", help="tables and remarks")
    parser.add_argument(
        "--update-docs", type=path, nargs="+", metavar="DOC", help="fill the tables marked in documents"
    )
    parser.add_argument("--check", action="store_true", help="change no document; exit with 1 when one is out of date")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say and return the exit code. Existing files are replaced. Raises JevifyError."""
    if (args.update_docs is None) == (not args.runs):
        raise InputError("give one of RUN with --html or --markdown, and --update-docs DOC")
    if args.update_docs is not None:
        if args.html is not None or args.markdown is not None:
            raise InputError("--html and --markdown act on a RUN, not on --update-docs")
        return _documents(args.update_docs, check=args.check)
    if args.check:
        raise InputError("--check goes with --update-docs")
    if args.html is None and args.markdown is None:
        raise InputError("give --html FILE, --markdown FILE or both")
    return _report(args)


def _report(args: argparse.Namespace) -> int:
    from jevify.evidence.page import page
    from jevify.evidence.report import markdown

    for file in (args.html, args.markdown):
        if file is not None:
            check_output(file, sources=args.runs)
    results = [read_run(stored) for stored in args.runs]
    if args.markdown is not None:
        write_text(args.markdown, "\n".join(markdown(result) for result in results))
    if args.html is not None:
        write_text(args.html, page(results))
    with printing():
        for file in (args.markdown, args.html):
            if file is not None:
                print(file)
    return 0


def _documents(documents: list[Path], *, check: bool) -> int:
    from jevify.evidence.docs_tables import outdated

    # Paths of runs are those from the folder where the command runs, as in the commands beside them.
    found = {document: outdated(document, Path()) for document in documents}
    stale = {document: text for document, text in found.items() if text is not None}
    if check:
        for document in stale:
            tell(f"{document}: its tables are not those of the stored runs: run jevify report --update-docs {document}")
        return 1 if stale else 0
    for document, text in stale.items():
        write_text(document, text)
        with printing():
            print(document)
    return 0
