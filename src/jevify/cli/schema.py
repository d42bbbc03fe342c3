"""`jevify schema`: the JSON Schema of the files that jevify reads."""

import argparse
import json
from typing import Any

from jevify.cli.output import printing
from jevify.decide.document import Document
from jevify.decide.request import Combined, Request
from jevify.decide.workflow import Workflow

DOCUMENTS: dict[str, type[Document]] = {"workflow": Workflow, "request": Request, "input": Combined}
"""The files by the name that the command takes."""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the `schema` command."""
    parser = subparsers.add_parser("schema", help="print the JSON Schema of a file that jevify reads")
    parser.add_argument("document", choices=DOCUMENTS, help="which file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema of `args.document` on stdout; returns 0."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    with printing():
        print(json.dumps(dialect | DOCUMENTS[args.document].model_json_schema(), indent=2))
    return 0
