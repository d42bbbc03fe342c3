"""Tables in Markdown documents that stored runs fill, between a pair of comments.

    <!-- table: evidence/run.json arms="independent; packed" columns="median ms; GPU ms" -->
    <!-- /table -->

The words after the run choose from its tables: `table` its number from 1 on (default 1), `arms` the rows by their
second column, `columns` the figures by heading, `as` their headings here. `<!-- missed: RUN ... -->` with
`<!-- /missed -->` holds the targets that the runs missed.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from jevify.errors import InputError
from jevify.evidence.report import tables
from jevify.evidence.store import read_result
from jevify.evidence.table import Table

_BLOCK = re.compile(r"(<!-- (table|missed): (.*?) -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
_MARK = re.compile(r"<!-- /?(?:table|missed)\b")
_OPTIONS = ("table", "arms", "columns", "as")


def filled(text: str, folder: Path, where: str) -> str:
    """The document with every marked table as its stored runs, paths from `folder`, have it now.

    Raises InputError, with the document's name `where`, for a marker without its pair and for a run, row or column that
    is not there.
    """
    blocks = list(_BLOCK.finditer(text))
    if len(_MARK.findall(text)) != 2 * len(blocks):
        raise InputError(f"{where}: a table marker has no pair: <!-- table: RUN --> ends with <!-- /table -->")

    def fill(block: re.Match[str]) -> str:
        build: Callable[[Sequence[str], Path], list[str]] = {"table": _table, "missed": _missed}[block[2]]
        try:
            lines = build(shlex.split(block[3]), folder)
        except (InputError, ValueError) as error:
            raise InputError(f"{where}: <!-- {block[2]}: {block[3]} -->: {error}") from error
        # Blank lines, since a comment and a table would be one paragraph.
        return "\n".join([block[1], *lines, "", block[5]])

    return _BLOCK.sub(fill, text)


def _table(words: Sequence[str], folder: Path) -> list[str]:
    if not words:
        raise InputError("name a stored run")
    run, *rest = words
    options = dict(word.partition("=")[::2] for word in rest)
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise InputError(f"{unknown[0]} is unknown; use {', '.join(_OPTIONS)}")
    found = tables(read_result(folder / run))
    number = options.get("table", "1")
    if number not in [str(index + 1) for index in range(len(found))]:
        raise InputError(f"table {number} is not one of the run's {len(found)}")
    table = found[int(number) - 1]
    if "arms" in options:
        table = _with_arms(table, _listed(options["arms"]))
    if "columns" in options:
        table = _with_columns(table, _listed(options["columns"]))
    if "as" in options:
        names = _listed(options["as"])
        if len(names) != len(table.headings) - 2:
            raise InputError(f"as names {len(names)} columns of {len(table.headings) - 2}")
        table = Table((*table.headings[:2], *names), table.rows)
    return table.markdown()


def _with_arms(table: Table, arms: Sequence[str]) -> Table:
    known = list(dict.fromkeys(row[1] for row in table.rows))
    if missing := [arm for arm in arms if arm not in known]:
        raise InputError(f"{table.headings[1]} {missing[0]!r} is not in the run; it has {', '.join(known)}")
    rows, case, shown = [], "", ""
    for row in table.rows:
        case = row[0] or case
        if row[1] in arms:
            rows.append(["" if case == shown else case, *row[1:]])
            shown = case
    return Table(table.headings, rows)


def _with_columns(table: Table, columns: Sequence[str]) -> Table:
    if missing := [name for name in columns if name not in table.headings]:
        raise InputError(f"column {missing[0]!r} is not in the table; it has {', '.join(table.headings[2:])}")
    kept = [0, 1, *(table.headings.index(name) for name in columns)]
    return Table(tuple(table.headings[index] for index in kept), [[row[index] for index in kept] for row in table.rows])


def _missed(words: Sequence[str], folder: Path) -> list[str]:
    if not words:
        raise InputError("name a stored run")
    found: list[str] = []
    met = short = 0
    for run in words:
        for table in tables(read_result(folder / run)):
            if "outcome" in table.headings:
                reached = sum(row[-1] == "met" for row in table.rows)
                found += _short_of(table)
                met, short = met + reached, short + len(table.rows) - reached
    if not found:
        return [f"All {met} targets are met."]
    return [f"{met} of {met + short} targets are met. Missed:", "", *(f"- {line}" for line in found)]


def _short_of(table: Table) -> list[str]:
    """A line for each case with targets that it missed or that were not measured."""
    missed: dict[str, list[str]] = {}
    case = ""
    for row in table.rows:
        case = row[0] or case
        figure, target, measured, outcome = row[1:]
        if outcome != "met":
            missed.setdefault(case, []).append(f"{figure} {measured} of {target}, {outcome.removeprefix('missed ')}")
    return [f"{name}: {'; '.join(figures)}" for name, figures in missed.items()]


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(";")]


def outdated(document: Path, folder: Path) -> str | None:
    """The document's text as it should be when it is another, else None. Raises InputError as `filled` does."""
    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{document}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    wanted = filled(text, folder, str(document))
    return None if wanted == text else wanted
