"""The table of a benchmark result, for a terminal or as Markdown."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jevify.evidence.bench import case_name, failures

_MIB = 1024 * 1024
_HEADINGS = (
    "case",
    "arm",
    "median ms",
    "p90 ms",
    "best ms",
    "ratio [95 %]",
    "share",
    "peak MiB",
    "labels agree",
    "max |dp|",
    "median |dp|",
)
_TIMES, _QUALITY = range(2, 7), range(7, 11)
_UNKNOWN = "-"


def markdown(result: dict[str, Any]) -> str:
    """The run, its table and its remarks as Markdown."""
    lines = [f"- {line}" for line in facts(result)]
    lines += ["", _markdown_row(_HEADINGS), _markdown_row(["---"] * 2 + ["---:"] * (len(_HEADINGS) - 2))]
    lines += [_markdown_row(row) for row in rows(result)]
    if told := remarks(result):
        lines += ["", *(f"- {line}" for line in told)]
    return "\n".join(lines) + "\n"


def show(result: dict[str, Any], console: Console) -> None:
    """Print what `markdown` holds as two tables that fit a terminal: times, then memory and quality."""
    for line in facts(result):
        console.print(line, markup=False, highlight=False)
    for columns in (_TIMES, _QUALITY):
        console.print(_terminal_table(rows(result), columns))
    for line in remarks(result):
        console.print(line, markup=False, highlight=False)


def _terminal_table(cells: list[list[str]], columns: range) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("arm", no_wrap=True)
    for column in columns:
        table.add_column(_HEADINGS[column], justify="right", no_wrap=True)
    for row in cells:
        if row[0]:
            table.add_section()
            table.add_row(Text(row[0], style="bold"))
        table.add_row(Text(row[1]), *(Text(row[column]) for column in columns))
    return table


def facts(result: dict[str, Any]) -> list[str]:
    """What was run, on what, and by which command."""
    scenario, place = result["scenario"], result["environment"]
    commit = place["commit"] or f"unknown ({place['commit_unknown']})"
    contexts = "a fresh context each round" if scenario["fresh_context"] else "one context for all rounds"
    packages = ", ".join(f"{name} {version}" for name, version in place["packages"].items() if version)
    device = ", ".join(place["gpus"]) if _on_cuda(result) else f"{place['cpu']}, {place['threads']} threads"
    return [
        f"{scenario['name']}: {scenario['model']}, dtype {scenario['dtype']}, device {scenario['device']}",
        f"{scenario['repeats']} interleaved rounds after {scenario['warmup']} of warm-up, {contexts}, "
        f"seed {result['seed']}",
        f"on {device}; {place['system']} {place['machine']}, Python {place['python']}, {packages}",
        f"commit {commit}{', with uncommitted changes' if place['dirty'] else ''}; {result['started']}",
        f"command: {result['command']}",
    ]


def rows(result: dict[str, Any]) -> list[list[str]]:
    """The cells of the table, a row for each arm of each case."""
    return [
        [case_name(case["case"]) if index == 0 else "", row["name"], *_cells(case, row)]
        for case in result["cases"]
        for index, row in enumerate(case.get("arms", []))
    ]


def remarks(result: dict[str, Any]) -> list[str]:
    """What the numbers do not say: bounds, sizes that were missed, flips, failures, interruption."""
    found = []
    for case in result["cases"]:
        name = case_name(case["case"])
        if case.get("bound") is not None:
            found.append(
                f"{name}: sharing the prefix can give {case['bound']:.2f}x, counted in tokens; share is ratio over that"
            )
        sizes = case.get("requests")
        if sizes and not sizes["exact"]:
            found.append(
                f"{name}: sizes were not met exactly: prefix {_span(sizes['shared_prefix_tokens'])}, "
                f"full question {_span(sizes['full_question_tokens'])} tokens"
            )
        for row in case.get("arms", []):
            for flip in (row.get("quality") or {}).get("flips", []):
                found.append(
                    f"{name}, {row['name']}: request {flip['request'] + 1}, {flip['question']}: "
                    f"{flip['candidate_label']} (lead {flip['candidate_margin']:.2g}), "
                    f"the oracle has {flip['oracle_label']} (lead {flip['oracle_margin']:.2g})"
                )
    found += [f"FAILED {line}" for line in failures(result)]
    if result["interrupted"]:
        found.append("INTERRUPTED: only what was finished is shown")
    return found


def _cells(case: dict[str, Any], row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return ["failed", *[_UNKNOWN] * (len(_HEADINGS) - 3)]
    ratio, share = row["ratio"], row.get("bound_share")
    quality = row["quality"] if row["quality"] and "error" not in row["quality"] else None
    return [
        f"{row['median_ms']:.1f}",
        f"{row['p90_ms']:.1f}",
        f"{row['min_ms']:.1f}",
        f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else _UNKNOWN,
        f"{share:.0%}" if share is not None else _UNKNOWN,
        _memory(row["memory_bytes"]),
        f"{quality['agreement']:.1%} of {quality['questions']}" if quality else _UNKNOWN,
        f"{quality['largest_difference']:.1e}" if quality else _UNKNOWN,
        f"{quality['median_difference']:.1e}" if quality else _UNKNOWN,
    ]


def _memory(memory: dict[str, Any] | None) -> str:
    """The CUDA peak where there is one; else the resident peak and what it rose by during the decision."""
    if memory is None:
        return _UNKNOWN
    if memory["cuda_peak"] is not None:
        return f"{memory['cuda_peak'] / _MIB:.0f}"
    if memory["resident_peak"] is None or memory["resident_start"] is None:
        return _UNKNOWN
    rise = memory["resident_peak"] - memory["resident_start"]
    return f"{memory['resident_peak'] / _MIB:.0f} (+{max(rise, 0) / _MIB:.0f})"


def _on_cuda(result: dict[str, Any]) -> bool:
    rows = [row for case in result["cases"] for row in case.get("arms", []) if "ran" in row]
    return any(str(row["ran"]["device"]).startswith("cuda") for row in rows)


def _span(ends: list[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _markdown_row(cells: "list[str] | tuple[str, ...]") -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
