"""A validation as JSON data, and as Markdown."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from jevify.evidence.environment import environment
from jevify.evidence.store import SCHEMA
from jevify.evidence.table import Table
from jevify.evidence.validate.check import Outcome


def validation(
    command: str, *, subject: dict[str, Any], tiny: Sequence[Outcome], engine: dict[str, Any] | None
) -> dict[str, Any]:
    """One validation. subject: model, revision, device, dtype and settings; empty when only tiny models ran.

    engine: what `validate_engine` gave.
    """
    found = engine or {"checks": [], "cases": [], "quality": None}
    return {
        "schema": SCHEMA,
        "kind": "validate",
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(command),
        "subject": subject,
        "tiny": [outcome.data() for outcome in tiny],
        **found,
    }


def failed(result: dict[str, Any]) -> list[str]:
    """Names of the checks that failed."""
    return [check["name"] for check in (*result["tiny"], *result["checks"]) if not check["passed"]]


def markdown(result: dict[str, Any]) -> str:
    """Every check with its value and threshold, the flips, and the verdict."""
    lines = [
        f"- command: {result['command']}",
        f"- commit {result['environment']['commit'] or 'unknown'}; {result['started']}",
    ]
    if subject := result["subject"]:
        lines.append(f"- {subject['model']}, {subject['dtype']} on {subject['device']}, {subject['executor']}")
    if quality := result["quality"]:
        lines += [
            f"- {who}: {found['questions']} labelled questions, accuracy {found['accuracy']:.3f}, "
            f"NLL {found['nll']:.4f}, Brier {found['brier']:.4f}, ECE {found['ece']:.4f}"
            for who, found in quality.items()
        ]
    checks = [*result["checks"], *_groups(result["tiny"])]
    rows = [["", check["name"], _figure(check["value"]), _bound(check), _verdict(check)] for check in checks]
    lines += ["", *Table(("", "check", "measured", "threshold", "verdict"), rows).markdown()]
    if cases := result["cases"]:
        lines += ["", *_cases(cases).markdown()]
        lines += ["", *(_flip(case["name"], flip) for case in cases for flip in case["against_oracle"]["flips"])]
    return "\n".join(lines).rstrip("\n") + "\n"


def _cases(cases: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for case in cases:
        against, noise = case["against_oracle"], case["noise"]
        rows.append(
            [
                "",
                case["name"],
                str(against["questions"]),
                f"{against['agreement']:.1%}",
                str(case["near_ties"]),
                f"{against['largest_difference']:.1e}",
                f"{against['median_difference']:.1e}",
                "-" if noise is None else f"{noise['largest_difference']:.1e}",
            ]
        )
    return Table(("", "requests", "questions", "agree", "near ties", "max |dp|", "median |dp|", "A/A max |dp|"), rows)


def _groups(tiny: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The checks of tiny models: one line for those of a first name that passed by one gate, every failure apart."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    counts: dict[tuple[str, str], int] = {}
    for check in tiny:
        key = (check["name"].partition(".")[0], check["gate"])
        if not check["passed"]:
            key = (check["name"], check["gate"])
        counts[key] = counts.get(key, 0) + 1
        if key not in worst or (check["value"] or 0) > (worst[key]["value"] or 0):
            worst[key] = check
    return [
        {**check, "name": key[0] if counts[key] == 1 else f"{key[0]} ({counts[key]} checks, the worst of them)"}
        for key, check in worst.items()
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _bound(check: dict[str, Any]) -> str:
    return f"{'at least' if check['least'] else 'at most'} {check['threshold']:g} ({check['gate']})"


def _verdict(check: dict[str, Any]) -> str:
    told = "pass" if check["passed"] else "FAIL"
    return f"{told}: {check['error']}" if check["error"] else told


def _flip(name: str, flip: dict[str, Any]) -> str:
    tie = "a near tie" if flip["near_tie"] else "no near tie"
    return (
        f"- {name}, request {flip['request']}, {flip['question']}: the oracle says {flip['oracle_label']!r} (margin "
        f"{flip['oracle_margin']:.4f}), the engine {flip['candidate_label']!r} ({flip['candidate_margin']:.4f}); {tie}"
    )
