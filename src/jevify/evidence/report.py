"""A benchmark result for people: facts, tables and remarks, on a terminal or as Markdown."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from jevify.evidence.bench import failures
from jevify.evidence.kinds import part
from jevify.evidence.table import Table


def markdown(result: dict[str, Any]) -> str:
    """The run, its tables and its remarks as Markdown."""
    lines = [f"- {line}" for line in facts(result)]
    for table in tables(result):
        lines += ["", *table.markdown()]
    if told := remarks(result):
        lines += ["", *(f"- {line}" for line in told)]
    return "\n".join(lines) + "\n"


def show(result: dict[str, Any], console: Console) -> None:
    """Print what `markdown` holds as tables that fit a terminal."""
    for line in facts(result):
        console.print(line, markup=False, highlight=False)
    for table in tables(result):
        for grid in table.grids():
            console.print(grid)
    for line in remarks(result):
        console.print(line, markup=False, highlight=False)


def facts(result: dict[str, Any]) -> list[str]:
    """What was run, on what, and by which command."""
    scenario, place = result["scenario"], result["environment"]
    commit = place["commit"] or f"unknown ({place['commit_unknown']})"
    packages = ", ".join(f"{name} {version}" for name, version in place["packages"].items() if version)
    subject = scenario.get("model", "no model")
    note = scenario.get("note")
    return [
        f"{scenario['name']}: {subject}, dtype {scenario['dtype']}, device {scenario['device']}",
        *([note] if note else []),
        f"{terms(result)}, seed {result['seed']}",
        f"on {device_of(result)}; {place['system']} {place['machine']}, Python {place['python']}, {packages}",
        f"commit {commit}{', with uncommitted changes' if place['dirty'] else ''}; {result['started']}",
        f"command: {result['command']}",
    ]


def terms(result: Mapping[str, Any]) -> str:
    """How the rounds ran."""
    return str(_kind(result).terms(result["scenario"]))


def device_of(result: Mapping[str, Any]) -> str:
    """The GPU that was measured, or the processor."""
    place = result["environment"]
    return ", ".join(place["gpus"]) if _on_cuda(result) else f"{place['cpu']}, {place['threads']} threads"


def tables(result: dict[str, Any]) -> list[Table]:
    """The figures; the first table is the main one."""
    found: list[Table] = _kind(result).tables(result)
    return found


def remarks(result: dict[str, Any]) -> list[str]:
    """What the numbers do not say, then failures and interruption."""
    found: list[str] = [*_kind(result).remarks(result), *(f"FAILED {line}" for line in failures(result))]
    if result["interrupted"]:
        found.append("INTERRUPTED: only what was finished is shown")
    return found


def _kind(result: Mapping[str, Any]) -> Any:
    return part(result["kind"], "table")


def _on_cuda(result: Mapping[str, Any]) -> bool:
    rows = [row for case in result["cases"] for row in case.get("arms", []) if "ran" in row]
    return any(str(row["ran"]["device"]).startswith("cuda") for row in rows)
