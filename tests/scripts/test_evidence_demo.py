"""The demo's steps, their order, and what a verdict against does."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from jevify.cli.arguments import Parser
from jevify.cli.profile import add_parser
from jevify.evidence.scenario import load_scenario

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("evidence_demo", ROOT / "scripts" / "evidence_demo.py")
assert _spec is not None
assert _spec.loader is not None
demo = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(demo)


@pytest.mark.parametrize(
    ("failing", "steps", "code"),
    [
        ((), ["profile", "bench", "validate", "report"], 0),
        (("validate",), ["profile", "bench", "validate", "report"], 1),
        (("report",), ["profile", "bench", "validate", "report"], 1),
        (("bench",), ["profile", "bench"], 1),
    ],
)
def test_steps_go_on_to_a_verdict_and_a_report(
    failing: tuple[str, ...], steps: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def command(words: Sequence[str]) -> int:
        ran.append(words[0])
        return int(ran[-1] in failing)

    assert demo.run(tmp_path / "made", command) == code
    assert ran == steps
    out = capsys.readouterr().out
    assert (f"open {tmp_path / 'made' / 'report.html'}" in out) == ("report" in steps and "report" not in failing)


def test_profile_and_scenario_are_what_the_commands_take(tmp_path: Path) -> None:
    parser = Parser()
    add_parser(parser.add_subparsers(dest="command"))
    args = parser.parse_args(demo.commands(tmp_path)["profile"])
    scenario = load_scenario(ROOT / "benchmarks" / f"{demo.SCENARIO}.toml")
    (case,) = scenario.data()["cases"]
    # The profile that names the dominant stage is of the size and executor that is measured.
    assert (args.prefix_tokens, args.question_tokens, args.questions) == (
        case["prefix_tokens"], case["question_tokens"], case["questions"]
    )  # fmt: skip
    assert args.executor == scenario.arms[1].settings["executor"] == "packed"
