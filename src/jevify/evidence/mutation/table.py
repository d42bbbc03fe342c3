"""The result of planting faults, read back and as Markdown."""

import json
from pathlib import Path
from typing import Any

from jevify.errors import InputError
from jevify.evidence.store import SCHEMA
from jevify.evidence.table import Table

# Checks named of one fault; the rest is counted.
_NAMED = 2


def read_mutations(path: Path) -> dict[str, Any]:
    """A stored run. Raises InputError when the file is not one, or is of another schema version."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(result, dict) or result.get("kind") != "mutation" or result.get("schema") != SCHEMA:
        raise InputError(f"{path}: not the result of jevify evidence mutate of schema version {SCHEMA}")
    return result


def markdown(result: dict[str, Any]) -> str:
    """What was planted, and which checks rejected it."""
    clean = result["clean"]
    told = f"fails {', '.join(clean['failed'])}" if clean["failed"] else f"passes all {clean['checks']} checks"
    caught = sum(bool(row["failed"]) for row in result["faults"])
    lines = [
        f"- command: {result['command']}",
        f"- commit {result['environment']['commit'] or 'unknown'}; {result['started']}; {result['seconds']:.0f} s",
        f"- the clean build {told}; {caught} of {len(result['faults'])} planted faults are rejected",
        "",
    ]
    return "\n".join([*lines, *fault_table(result)]) + "\n"


def fault_table(result: dict[str, Any]) -> list[str]:
    """The lines of the Markdown table of faults."""
    rows = [[row["fault"], f"{row['says']} ({_place(row)})", _checks(row["failed"])] for row in result["faults"]]
    return Table(("fault", "what is wrong", "rejected by"), rows).markdown()


def _place(row: dict[str, Any]) -> str:
    module = row["module"].removeprefix("jevify.")
    return f"{module}, kind {row['row']}" if row["row"] else module


def _checks(failed: list[str]) -> str:
    if not failed:
        return "**nothing**"
    rest = len(failed) - _NAMED
    return ", ".join(failed[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
