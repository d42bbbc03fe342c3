"""A decision as people read it in a terminal: an answer and bars for each question."""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from jevify.decide.answers import top_label
from jevify.decide.decision import UNCALIBRATED

MOST_ROWS = 12
"""Options shown of one question; the rest is summed up in one row."""

LONGEST_BAR = 30
LONGEST_LABEL = 36
_SHORTEST_BAR = 4
_PERCENT = len("100.0 %")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TIE = "≈"
_STATUS = {
    UNCALIBRATED: (
        "Probabilities are those of the model's answer tokens, uncalibrated: they rank the options, "
        "and are not measured chances of being right."
    ),
}
# Format characters that scripts and emoji need inside a word.
_JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    """`text` on one line: line breaks, control and direction characters are written as escapes."""
    return "".join(
        character
        if character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def bar(share: float, width: int) -> str:
    """A bar for `share` (0 to 1) of `width` columns, in eighths of a column; never empty above zero."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def percent(share: float) -> str:
    """`share` as a percentage that is 0.0 or 100.0 only when the share is exactly 0 or 1."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %"


def show(
    decision: Mapping[str, Any], console: Console, evaluation: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Print the model, a block for each question, and how the answers came about.

    evaluation: by question id, the `expected` label and whether the answer `matched`.
    """
    metadata = decision["metadata"]
    blocks = {name: _rows(answer) for name, answer in decision["answers"].items()}
    widths = _Widths(console.width, [label for rows in blocks.values() for label, _, _ in rows])
    place = " · ".join(str(metadata[key]) for key in ("executor", "dtype", "device"))
    _print(console, Text.assemble((visible(decision["model"]), "bold"), f"  {visible(place)}"))
    for name, answer in decision["answers"].items():
        _print(console)
        headline = _headline(name, answer, (evaluation or {}).get(name), console.width)
        if mark := _tie_mark(metadata, name):
            headline.append(f"  {mark}", "yellow")
        _print(console, headline)
        for label, share, chosen in blocks[name]:
            _print(console, widths.row(label, share, chosen))
    _print(console)
    for line in _footer(decision, evaluation):
        _print(console, Text(line, "dim"))


class _Widths:
    """Columns of the rows, the same for every question: label, bar, percentage."""

    def __init__(self, width: int, labels: Iterable[str]) -> None:
        longest = max(map(cell_len, labels))
        self._label = min(longest, LONGEST_LABEL, max(1, width // 2))
        self._bar = min(LONGEST_BAR, width - self._label - _PERCENT - 6)
        if self._bar < _SHORTEST_BAR:
            self._bar = 0
            self._label = min(longest, max(1, width - _PERCENT - 4))

    def row(self, label: str, share: float, chosen: bool) -> Text:
        style = "bold green" if chosen else ""
        row = Text("  ")
        row.append_text(_fitted(label, self._label, style))
        if self._bar:
            drawn = bar(share, self._bar)
            row.append("  " + drawn + " " * (self._bar - len(drawn)), "green" if chosen else "cyan")
        return row.append(f"  {percent(share):>{_PERCENT}}", style)


def _rows(answer: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
    """Label, probability and whether it is the most probable one; at most MOST_ROWS, in the order of the question."""
    shares: Mapping[str, float] = answer["probabilities"]
    legend: Mapping[str, str] = answer.get("legend", {})
    chosen = top_label(shares)
    kept = set(shares)
    if len(shares) > MOST_ROWS:
        # A stable sort: of equal ones the first, as the answer itself.
        kept = set(sorted(shares, key=lambda label: -shares[label])[: MOST_ROWS - 1])
    rows = [
        (visible(f"{label} {legend[label]}" if label in legend else label), share, label == chosen)
        for label, share in shares.items()
        if label in kept
    ]
    if hidden := [share for label, share in shares.items() if label not in kept]:
        rows.append((f"({len(hidden)} others)", sum(hidden), False))
    return rows


def _headline(name: str, answer: Mapping[str, Any], outcome: Mapping[str, Any] | None, width: int) -> Text:
    line = _fitted(visible(name), min(cell_len(visible(name)), max(1, width // 2)), "bold")
    line.append("  ")
    said, note = _said(answer)
    line.append(visible(said), "bold green")
    line.append(f"  {note}", "dim")
    if outcome is not None:
        good = outcome["matched"]
        text = "as expected" if good else f"expected {visible(outcome['expected'])}"
        line.append(f"  {'✓' if good else '✗'} {text}", "green" if good else "red")
    return line


def _said(answer: Mapping[str, Any]) -> tuple[str, str]:
    """The answer, and how sure the model is of it."""
    if answer["type"] == "choice":
        return answer["choice"], f"confidence {answer['confidence']:.2f}"
    if answer["type"] == "noul":
        return top_label(answer["probabilities"]), f"probability of yes {answer['noul']:.3f}"
    highest = len(answer["probabilities"]) - 1
    return f"{answer['score']:.2f}", f"on a scale of 0 to {highest}  confidence {answer['confidence']:.2f}"


def _tie_mark(metadata: Mapping[str, Any], name: str) -> str:
    """The mark of a near tie, or nothing; a drift that is not known marks nothing."""
    entry = metadata.get("questions", {}).get(name, {})
    if entry.get("near_tie") is not True:
        return ""
    return f"{_TIE} settled" if entry["settled"] else f"{_TIE} near tie"


def _ties(metadata: Mapping[str, Any]) -> Iterable[str]:
    marks = {_tie_mark(metadata, name) for name in metadata.get("questions", {})} - {""}
    if not marks:
        return
    drift = metadata["drift"]
    reach = f"the first two options are within {drift['safety']:g} x {drift['nats']:.2g} nats"
    if drift["status"] == "none":
        yield f"{_TIE}: the first two options are exactly even: the first one in order is told"
    elif f"{_TIE} near tie" in marks:
        yield f"{_TIE} near tie: {reach}, which precision and batch shape may move; --stable settles it"
    else:
        yield f"{_TIE} settled: {reach}, which precision and batch shape may move: scored again alone, in fp32"


def _footer(decision: Mapping[str, Any], evaluation: Mapping[str, Mapping[str, Any]] | None) -> Iterable[str]:
    if evaluation is not None:
        matched = sum(outcome["matched"] for outcome in evaluation.values())
        yield f"{matched} of {len(evaluation)} answers as expected"
    metadata = decision["metadata"]
    stages = dict(metadata["stages_ms"])
    total = stages.pop("total")
    parts = ", ".join(f"{stage} {spent:.0f}" for stage, spent in stages.items())
    calls = metadata["forward_calls"]
    yield (
        f"{total:.0f} ms ({parts}) · {calls} forward call{'' if calls == 1 else 's'}"
        f" · {metadata['shared_prefix_tokens']} shared tokens"
    )
    for name, reason in _fallbacks(metadata["optimizations"]):
        yield f"fell back: {visible(name)}: {visible(reason)}"
    yield from _ties(metadata)
    yield _STATUS.get(decision["probability_status"], visible(decision["probability_status"]))


def _fallbacks(optimizations: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield from optimizations.get("fallbacks", {}).items()
    for name, value in optimizations.get("counters", {}).items():
        if name.startswith("last_") and name.endswith("fallback") and value:
            yield name.removeprefix("last_").removesuffix("_fallback").replace("_", " "), str(value)


def _fitted(text: str, width: int, style: str = "") -> Text:
    fitted = Text(text, style)
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return Text.assemble(fitted)


def _print(console: Console, line: Text | None = None) -> None:
    console.print(line or Text(), highlight=False)
