"""`jevify report`."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.cli import report
from jevify.cli.arguments import Parser
from jevify.errors import InputError, JevifyError
from jevify.evidence.bench import run_benchmark
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO = {
    "name": "small",
    "kind": "decide",
    "model": "fake",
    "seed": 7,
    "repeats": 2,
    "cases": [{"prefix_tokens": 50, "question_tokens": 20, "questions": 4}],
    "baseline": {"name": "independent", "executor": "independent"},
    "candidates": [{"name": "packed", "executor": "packed"}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake = FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]})
    result = run_benchmark(parse_scenario(SCENARIO), command="x", load=lambda _: FakeEngine(fake), clock=fake.clock)
    (tmp_path / "run.json").write_text(json.dumps(result))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> int:
    parser = Parser()
    report.add_parser(parser.add_subparsers(dest="command"))
    return report.run(parser.parse_args(["report", *words]))


def test_runs_become_a_page_and_markdown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run.json", "run.json", "--html", "page.html", "--markdown", "page.md") == 0
    assert capsys.readouterr().out == "page.md\npage.html\n"
    assert (folder / "page.md").read_text().count("| N=4 P=50 Q=20 | independent | 8.0 |") == 2
    tree = ElementTree.fromstring((folder / "page.html").read_text().split("\n", 1)[1])
    assert [article.attrib["id"] for article in tree.iter("article")] == ["run-0", "run-1"]
    assert call("run.json", "--html", "page.html") == 0


def test_documents_are_checked_and_filled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.md").write_text("<!-- table: run.json -->\n<!-- /table -->\n")
    (folder / "b.md").write_text("nothing to fill\n")
    assert call("--update-docs", "a.md", "b.md", "--check") == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "a.md: its tables are not those of the stored runs" in err
    assert call("--update-docs", "a.md", "b.md") == 0
    assert capsys.readouterr().out == "a.md\n"
    assert "| packed | 2.0 |" in (folder / "a.md").read_text()
    assert call("--update-docs", "a.md", "b.md", "--check") == 0


def test_no_document_changes_when_one_cannot_be_filled(folder: Path) -> None:
    (folder / "a.md").write_text("<!-- table: run.json -->\n<!-- /table -->\n")
    (folder / "b.md").write_text("<!-- table: none.json -->\n<!-- /table -->\n")
    with pytest.raises(InputError, match=r"none\.json: cannot be read"):
        call("--update-docs", "a.md", "b.md")
    assert (folder / "a.md").read_text() == "<!-- table: run.json -->\n<!-- /table -->\n"


def test_without_matplotlib_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(JevifyError, match=r"pip install 'jevify\[report\]'"):
        call("run.json", "--html", "page.html")
    assert not (folder / "page.html").exists()
    assert call("run.json", "--markdown", "page.md") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of RUN with"),
        (["run.json"], "give --html FILE, --markdown FILE or both"),
        (["run.json", "--update-docs", "a.md"], "give one of RUN with"),
        (["run.json", "--html", "a.html", "--check"], "--check goes with --update-docs"),
        (["--update-docs", "a.md", "--html", "a.html"], "--html and --markdown act on a RUN"),
        (["run.json", "--html", "run.json"], "is read as input"),
        (["none.json", "--html", "a.html"], r"none\.json: cannot be read"),
    ],
)
def test_arguments_without_effect_or_sense_are_refused(folder: Path, words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(*words)
