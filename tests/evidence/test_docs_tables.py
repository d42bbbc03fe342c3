"""Tables of documents that stored runs fill."""

import json
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import InputError
from jevify.evidence.bench import run_benchmark
from jevify.evidence.docs_tables import filled, outdated
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets = {"ratio": 2, "decide_ms": 1}
    scenario = parse_scenario(
        {
            "name": "small",
            "kind": "decide",
            "model": "fake",
            "seed": 7,
            "repeats": 2,
            "cases": [
                {"prefix_tokens": 50, "question_tokens": 20, "questions": count, "targets": targets} for count in (4, 2)
            ],
            "baseline": {"name": "independent", "executor": "independent"},
            "candidates": [{"name": "forked", "executor": "forked"}, {"name": "packed, all", "executor": "packed"}],
        }
    )
    fake = FakeModel(FakeClock(), {"independent": [0.008], "forked": [0.004], "packed": [0.002]})
    result = run_benchmark(scenario, command="x", load=lambda _: FakeEngine(fake), clock=fake.clock)
    made = tmp_path_factory.mktemp("runs")
    (made / "run.json").write_text(json.dumps(result))
    return made


def between(marker: str, folder: Path) -> list[str]:
    kind = marker.split(":")[0]
    text = filled(f"before\n\n<!-- {marker} -->\nstale\n<!-- /{kind} -->\n\nafter\n", folder, "doc")
    first, *lines, last = text.removeprefix("before\n\n").removesuffix("\n\nafter\n").splitlines()
    assert (first, last) == (f"<!-- {marker} -->", f"<!-- /{kind} -->")
    assert lines[0] == lines[-1] == ""
    return lines[1:-1]


def test_arms_and_columns_are_chosen_in_the_order_of_the_run(folder: Path) -> None:
    marker = 'table: run.json arms="packed, all; forked" columns="ratio [95 %]; median ms" as="faster; ms"'
    assert between(marker, folder) == [
        "| case | arm | faster | ms |",
        "| --- | --- | ---: | ---: |",
        "| N=4 P=50 Q=20 | forked | 2.00 [2.00, 2.00] | 4.0 |",
        "|  | packed, all | 4.00 [4.00, 4.00] | 2.0 |",
        "| N=2 P=50 Q=20 | forked | 2.00 [2.00, 2.00] | 4.0 |",
        "|  | packed, all | 4.00 [4.00, 4.00] | 2.0 |",
    ]


def test_another_table_of_the_run(folder: Path) -> None:
    lines = between("table: run.json table=2", folder)
    assert lines[2] == "| N=4 P=50 Q=20, packed, all | decide_ms | 1 | 2.00 | missed by 1.00 (100%) |"
    assert lines[3] == "|  | ratio | 2 | 4.00 | met |"


def test_what_was_missed_is_counted_and_told(folder: Path) -> None:
    assert between("missed: run.json run.json", folder) == [
        "4 of 8 targets are met. Missed:",
        "",
        *["- N=4 P=50 Q=20, packed, all: decide_ms 2.00 of 1, by 1.00 (100%)",
          "- N=2 P=50 Q=20, packed, all: decide_ms 2.00 of 1, by 1.00 (100%)"] * 2,
    ]  # fmt: skip


def test_filling_twice_changes_nothing_and_other_text_stays(folder: Path) -> None:
    text = "a | b\n<!-- table: run.json -->\n<!-- /table -->\nc\n<!-- missed: run.json -->\nx\n<!-- /missed -->\n"
    once = filled(text, folder, "doc")
    assert once.startswith("a | b\n<!-- table: run.json -->\n\n| case")
    assert filled(once, folder, "doc") == once


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: run.json -->\n", "doc: a table marker has no pair"),
        ("<!-- /table -->\n", "doc: a table marker has no pair"),
        ("<!-- table: run.json -->\n<!-- /missed -->\n", "doc: a table marker has no pair"),
        ('<!-- table: run.json arms="x" -->\n<!-- /table -->', "arm 'x' is not in the run; it has independent, forked"),
        ('<!-- table: run.json columns="x" -->\n<!-- /table -->', "column 'x' is not in the table; it has median ms"),
        ("<!-- table: run.json table=3 -->\n<!-- /table -->", "table 3 is not one of the run's 2"),
        ("<!-- table: run.json rows=3 -->\n<!-- /table -->", "rows is unknown; use table, arms, columns, as"),
        ('<!-- table: run.json as="a; b" -->\n<!-- /table -->', "as names 2 columns of 12"),
        ('<!-- table: run.json as="a -->\n<!-- /table -->', "No closing quotation"),
        ("<!-- table: none.json -->\n<!-- /table -->", "none.json: cannot be read"),
    ],
)
def test_a_marker_that_cannot_be_filled_is_refused(folder: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        filled(text, folder, "doc")


def test_a_document_is_out_of_date_when_its_run_changed(folder: Path, tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(filled("<!-- table: run.json -->\n<!-- /table -->\n", folder, "doc"))
    assert outdated(document, folder) is None
    stored: dict[str, Any] = json.loads((folder / "run.json").read_text())
    stored["cases"][0]["arms"][1]["median_ms"] = 4.5
    (tmp_path / "run.json").write_text(json.dumps(stored))
    changed = outdated(document, tmp_path)
    assert changed is not None
    assert "| forked | 4.5 |" in changed
    with pytest.raises(InputError, match=r"none\.md: cannot be read"):
        outdated(tmp_path / "none.md", tmp_path)


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_the_documents_here_are_up_to_date(document: str) -> None:
    assert outdated(ROOT / document, ROOT) is None
