"""Stored runs as one HTML page that needs nothing else: plots, tables and remarks, light or dark as the reader has it.

The page is well-formed XML too, so that a check can read it.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jevify.evidence.plots.chosen import figures
from jevify.evidence.plots.style import svg
from jevify.evidence.report import device_of, remarks, tables, terms
from jevify.evidence.table import Table

_STYLE = Path(__file__).with_name("page.css")
# Remarks beyond this many are folded.
_SHOWN = 8


def page(results: Sequence[dict[str, Any]]) -> str:
    """The page of one stored run or more. Raises JevifyError without matplotlib."""
    names = [str(result["scenario"]["name"]) for result in results]
    contents = ""
    if len(results) > 1:
        links = "".join(f'<li><a href="#run-{index}">{escape(name)}</a></li>' for index, name in enumerate(names))
        contents = f"<nav><ul>{links}</ul></nav>"
    body = "\n".join(_article(result, f"run-{index}") for index, result in enumerate(results))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>jevify: {escape(', '.join(names))}</title>\n"
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head>\n<body><main>\n{contents}{body}\n</main></body></html>\n"
    )


def _article(result: dict[str, Any], name: str) -> str:
    drawn = [
        _figure(result, title, svg(figure, escape(title, quote=True), f"{name}-{index}"))
        for index, (title, figure) in enumerate(figures(result))
    ]
    found = tables(result)
    told = [f"<h2>{escape(_title(table))}</h2>\n{_table(table)}" for table in found]
    # Targets stand first: they say what the run fell short of.
    told.sort(key=lambda text: "<h2>Targets" not in text)
    return "\n".join([f'<article id="{name}">', _head(result), *drawn, *told, _remarks(remarks(result)), "</article>"])


def _head(result: Mapping[str, Any]) -> str:
    scenario = result["scenario"]
    place = result["environment"]
    versions = ", ".join(f"{package} {version}" for package, version in place["packages"].items() if version)
    lines = {
        "Model": f"{scenario.get('model', 'none')}, dtype {scenario['dtype']}",
        "Machine": f"{device_of(result)}; {place['system']} {place['machine']}",
        "Versions": f"Python {place['python']}, {versions}",
        "Rounds": f"{terms(result)}, seed {result['seed']}",
        "Commit": f"{source(result)}{', with uncommitted changes' if place['dirty'] else ''}; {result['started']}",
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in lines.items())
    note = scenario.get("note")
    return (
        f'<h1>{escape(scenario["name"])}</h1>\n<p class="lead">{escape(scenario.get("description") or "")}</p>\n'
        + (f"<p><strong>{escape(note)}</strong></p>\n" if note else "")
        + ('<p class="failed">Interrupted: only what was finished is shown.</p>\n' if result["interrupted"] else "")
        + f"<dl>{rows}<dt>Command</dt><dd><code>{escape(result['command'])}</code></dd></dl>"
    )


def _figure(result: Mapping[str, Any], title: str, drawing: str) -> str:
    caption = f"{device_of(result)}; <code>{escape(result['command'])}</code>; commit {escape(source(result))}"
    return f"<h2>{escape(title)}</h2>\n<figure>{drawing}\n<figcaption>{caption}</figcaption></figure>"


def source(result: Mapping[str, Any]) -> str:
    """The commit of a run, or what identifies its source where there was no repository."""
    place = result["environment"]
    if place["commit"]:
        return str(place["commit"])[:12]
    return f"unknown, source sha256 {place['source_sha256'][:12]}"


def _title(table: Table) -> str:
    names = {"target": "Targets", "class": "Stages", "compile caches": "Cold starts", "rows of the bucket": "Buckets"}
    known = next((text for heading, text in names.items() if heading in table.headings), None)
    return known or {"part": "Parts of the model", "kernel": "Kernels", "what": "Measured elsewhere"}.get(
        table.headings[1], "Figures"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    body = ""
    for row in table.rows:
        cells = "".join(f"<td{_marked(cell)}>{escape(cell)}</td>" for cell in row)
        body += f'<tr class="first">{cells}</tr>\n' if row[0] else f"<tr>{cells}</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _marked(cell: str) -> str:
    kind = next((word for word in ("met", "missed", "failed") if cell.split(" ")[0] == word), None)
    return f' class="{kind}"' if kind else ""


def _remarks(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    failed = ' class="failed"'
    items = "".join(f"<li{failed if line.startswith('FAILED') else ''}>{escape(line)}</li>" for line in lines)
    if len(lines) <= _SHOWN:
        return f'<h2>Remarks</h2><ul class="remarks">{items}</ul>'
    return f"<details><summary>{len(lines)} remarks</summary><ul>{items}</ul></details>"
