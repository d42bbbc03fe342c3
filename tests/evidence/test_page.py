"""The HTML page: what is on it, that it is well formed, and that it needs nothing from elsewhere."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.evidence import cold
from jevify.evidence.bench import run_benchmark
from jevify.evidence.page import page
from jevify.evidence.plots import style
from jevify.evidence.plots.chosen import figures
from jevify.evidence.scenario import parse_scenario
from jevify.evidence.store import read_result

pytestmark = pytest.mark.cpu

EVIDENCE = Path(__file__).parents[2] / "evidence"
SVG = "{http://www.w3.org/2000/svg}"
SCENARIO: dict[str, Any] = {
    "name": "small & <quick>",
    "kind": "decide",
    "model": "fake",
    "seed": 7,
    "repeats": 3,
    "cold": 1,
    "note": "random weights",
    "cases": [
        {"prefix_tokens": 50, "question_tokens": 20, "questions": 4, "targets": {"ratio": 5}},
        {"prefix_tokens": 50, "question_tokens": 20, "questions": 1},
    ],
    "baseline": {"name": "independent", "executor": "independent"},
    "candidates": [{"name": "packed", "executor": "packed"}],
}


def run(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    monkeypatch.setattr(cold, "spawn", lambda task, caches: dict.fromkeys(cold.TIMES, 12.0))

    def meddle(executor: str, decision: dict[str, Any], log: Any) -> None:
        if executor == "packed":
            answer = decision["answers"]["question_1"]["probabilities"]
            first, second, *_ = answer
            answer[first], answer[second] = answer[first] - 0.01, answer[second] + 0.01

    fake = FakeModel(FakeClock(), {"independent": [0.008], "packed": [0.002]}, meddle=meddle)
    scenario = parse_scenario({**SCENARIO, **changes})
    return run_benchmark(scenario, command="jevify bench 'a & b'", load=lambda _: FakeEngine(fake), clock=fake.clock)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.split("\n", 1)[1])


def words(tree: ElementTree.Element) -> str:
    return " ".join(" ".join(tree.itertext()).split())


def test_the_page_holds_the_run_and_its_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = parsed(page([run(monkeypatch)]))
    assert [title.text for title in tree.iter("h2")] == [
        "Time of a decision against its tokens",
        "Speed-up over the baseline, pair by pair",
        "Where the time goes",
        "Differences from the oracle",
        "Peak memory",
        "Targets",
        "Figures",
        "Cold starts",
        "Remarks",
    ]
    assert len(list(tree.iter(f"{SVG}svg"))) == len(list(tree.iter("figcaption"))) == 5
    captions = {words(caption) for caption in tree.iter("figcaption")}
    (caption,) = captions
    assert "jevify bench 'a & b'" in caption
    assert "commit" in caption
    text = words(tree)
    assert "small & <quick>" in text
    # Plotted: tokens of the cases, median ratio, stage, the share of equal probabilities, memory.
    for told in ("130 N=4", "4.00x", "forward", "packed: 39 probabilities", "largest 1.0e-02", "missed by 1.00 (20%)"):
        assert told in text


def test_a_page_refers_to_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [read_result(path) for path in sorted(EVIDENCE.glob("*-cuda.json"))]
    text = page([run(monkeypatch), *stored])
    tree = parsed(text)
    assert len(list(tree.iter("article"))) == 1 + len(stored)
    references = [
        value for element in tree.iter() for name, value in element.attrib.items() if re.search("(href|src)$", name)
    ]
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert references
    assert {value.removeprefix("#") for value in references} <= set(ids)
    assert set(re.findall(r"url\(#?([^)]*)\)", text)) <= set(ids)
    assert not [element for element in tree.iter() if element.tag in ("script", "link", "img", "iframe")]
    assert "@import" not in text
    # Every color is the theme's.
    assert not [color for color in style.VARIABLES if color in text]
    assert not re.findall(r"(?:fill|stroke): #\w+", text)
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    dark = text[text.index("prefers-color-scheme: dark") :]
    assert {name for name in used if f"--{name}:" not in dark} == {"sans"}


def test_every_kind_of_stored_run_has_its_plots() -> None:
    titles = {
        path.stem: [title.split(":")[0] for title, _ in figures(read_result(path))]
        for path in EVIDENCE.glob("*-cuda.json")
    }
    assert titles["decide-cuda"] == [
        "Time of a decision against its tokens",
        "Speed-up over the baseline, pair by pair",
        "Where the time goes",
        "Peak memory",
    ]
    assert titles["crossover-cuda"] == ["Crossover of shared attention"]
    assert titles["profile-cuda"] == ["Parts of the model on the device"]
    assert titles["throughput-cuda"] == ["Requests a second"]
    assert titles["varied-cuda"] == ["Time of the requests of a bucket"]
    assert titles["kernels-cuda"] == ["Share of the memory bandwidth"]


def test_a_crossover_frames_what_loses() -> None:
    rows = [
        {"prefix": prefix, "branches": 1, "rows": 8, "kernel_us": 2.0, "calls_us": calls, "name": "x"}
        for prefix, calls in ((16, 8.4), (2048, 1.0))
    ]
    result = {"kind": "crossover", "cases": [{"case": {}, "arms": rows}]}
    ((_, figure),) = figures(result)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["4.2", "0.5"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "2k"]
    assert [patch.get_linewidth() for patch in axes.patches] == [0.8, 1.4]


def test_the_stage_bars_fill_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = dict(figures(run(monkeypatch)))
    axes = drawn["Where the time goes"].axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    # Forward 2 of 3 ms, then the rest, in four rows.
    assert widths == pytest.approx([200 / 3, 100 / 3] * 4)


def test_a_failed_run_still_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch)
    for case in result["cases"]:
        case["arms"] = [{"name": row["name"], "error": "no <memory>"} for row in case["arms"]]
    tree = parsed(page([{**result, "interrupted": True}]))
    assert not list(tree.iter(f"{SVG}svg"))
    assert "FAILED N=4 P=50 Q=20, packed: no <memory>" in words(tree)
    assert "Interrupted" in words(tree)
