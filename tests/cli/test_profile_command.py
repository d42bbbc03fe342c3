"""`jevify profile`, with a fake engine in the place of a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.cli import profile
from jevify.cli.arguments import Parser
from jevify.cli.main import main
from jevify.errors import InputError, SettingError

pytestmark = pytest.mark.cpu


def call(*words: str) -> tuple[int, FakeModel]:
    parser = Parser()
    profile.add_parser(parser.add_subparsers(dest="command"))
    args = parser.parse_args(["profile", *words])
    args.words = ["profile", *words]
    fake = FakeModel(FakeClock(), {name: [0.002] for name in ("forked", "packed", "independent", "auto")})
    return profile.run(args, load=lambda scenario: FakeEngine(fake)), fake


def test_stages_are_printed_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("decide", "--executor", "packed", "--prefix-tokens", "50", "--question-tokens", "20", "--repeats", "3")
    code, fake = call(*words, "--output", "run.json")
    assert code == 0
    assert [name for name, _ in fake.log] == ["packed"] * 5
    out = capsys.readouterr().out
    assert "| N=4 P=50 Q=20, packed | forward | model | 2.00 | 2.00 | 66.7% |" in out
    assert "dominant stage forward (model)" in out
    stored = json.loads((tmp_path / "run.json").read_text())
    assert stored["command"] == f"jevify profile {' '.join(words)} --output run.json"
    assert stored["scenario"]["candidates"][0]["settings"] == {"executor": "packed"}
    assert len(stored["cases"][0]["arms"][0]["samples_ms"]) == 3
    with pytest.raises(InputError, match=r"run\.json: exists"):
        call("decide", "--output", "run.json")


def test_a_large_request_finds_room() -> None:
    code, _ = call("decide", "--executor", "packed", "--prefix-tokens", "3000", "--questions", "40", "--repeats", "1")
    assert code == 0


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["world"], InputError, "streams are not in this version"),
        (["decide", "--repeats", "0"], InputError, r"profile\.repeats: 0 is not a whole number from 1 to 10,000"),
        (["decide", "--questions", "0"], InputError, r"profile\.questions: 0 is not"),
        (["decide", "--force"], InputError, "--force acts on --output and --trace"),
        (["decide", "--warmup"], InputError, "unrecognized arguments: --warmup"),
        (["decide", "--mode", "independent", "--executor", "packed"], SettingError, "contradicts"),
        (["decide", "--executor", "packed", "--branch-batch-size", "2"], SettingError, "no effect on the packed"),
        (["decide", "--device", "tpu"], SettingError, "--device is 'tpu'"),
        (["decide", "--adapter", "x"], SettingError, "--adapter is not in this version"),
    ],
)
def test_what_cannot_be_profiled_is_refused(words: list[str], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(*words)


def test_the_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "world"]) == 2
    assert "streams are not in this version" in capsys.readouterr().err
