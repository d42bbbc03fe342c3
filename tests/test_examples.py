"""The example programs, run on the embedded model."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from jevify.models import catalog

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(catalog.installed(catalog.DEFAULT_MODEL) is None, reason="run: jevify models pull smollm2-135m"),
]

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def engine():
    import torch

    from jevify.engine import DecisionEngine

    threads = torch.get_num_threads()
    # Threads that wait for each other on a busy machine take many times as long as one alone.
    torch.set_num_threads(1)
    yield DecisionEngine.from_pretrained(local_files_only=True)
    torch.set_num_threads(threads)


@pytest.fixture
def example(engine, monkeypatch):
    """Loads an example by name; its engine is the shared one, and `asked` holds the models it wanted."""
    from jevify.engine import DecisionEngine

    asked = []

    def load(model, **settings):
        asked.append(model)
        return engine

    monkeypatch.setattr(DecisionEngine, "from_pretrained", load)

    def program(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.asked = asked
        return module

    return program


def test_route_ticket(example, engine, capsys):
    program = example("route_ticket")
    ticket = "My card was charged twice, please send the money back."
    assert program.main([ticket, "--model", "smollm2-135m"]) == 0
    out, err = capsys.readouterr()
    found = re.fullmatch(r"department: (\w+) \(probability (0\.\d\d)\)\nrefund: (yes|no) \(([01]\.\d\d)\)\n", out)
    assert found, out
    answers = engine.decide(ticket, program.ROUTING)["answers"]
    shares = answers["department"]["probabilities"]
    assert found[1] == max(shares, key=shares.get)
    assert float(found[2]) == pytest.approx(max(shares.values()), abs=0.0051)
    assert float(found[4]) == pytest.approx(answers["refund"]["noul"], abs=0.0051)
    assert (err, program.asked) == ("", ["smollm2-135m"])


def test_route_ticket_tells_what_is_wrong(example, capsys):
    assert example("route_ticket").main([" "]) == 2
    assert "context" in capsys.readouterr().err


SENTIMENT = {"type": "choice", "instructions": "What is the sentiment?", "criteria": ["negative", "positive"]}
YES = {"type": "noul", "instructions": "Is it about money?"}


def test_grade_jsonl(example, engine, capsys, tmp_path):
    texts = ["A wonderful film.", "Dull and far too long.", "A joy from start to end."]
    said = []
    for text in texts:
        shares = engine.decide(text, {"s": SENTIMENT})["answers"]["s"]["probabilities"]
        said.append(max(shares, key=shares.get))
    # The second label is made wrong, so that two of three match whatever the model says.
    labels = [said[0], "positive" if said[1] == "negative" else "negative", said[2]]
    rows = [
        json.dumps({"context": text, "questions": {"s": SENTIMENT}, "expected_labels": {"s": label}}).encode()
        for text, label in zip(texts, labels, strict=True)
    ]
    no_labels = json.dumps({"context": "x", "questions": {"y": YES}}).encode()
    rows[1:1] = [b"{not json", no_labels, b'"\xff"']
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(rows) + b"\n")

    assert example("grade_jsonl").main([str(path)]) == 0
    out, err = capsys.readouterr()
    # Wilson's interval for 2 of 3, from the formula: (0.2077, 0.9385).
    assert out.splitlines()[0] == "choice 0.667 [0.208, 0.939] of 3"
    assert re.fullmatch(r"3 rows, \d+ ms a row", out.splitlines()[1])
    aside = err.splitlines()
    assert [line.split(": ")[:2] for line in aside] == [["set aside", f"line {n}"] for n in (2, 3, 4)]
    assert "not valid JSON" in aside[0]
    assert aside[1].endswith("line 3: has no expected_labels")
    assert "utf-8" in aside[2]


def test_grade_jsonl_needs_a_good_row(example, capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n", "utf-8")
    assert example("grade_jsonl").main([str(path)]) == 2
    assert "no row can be graded" in capsys.readouterr().err
    assert example("grade_jsonl").main([str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    ("right", "total", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)]
)
def test_wilson_interval(example, right, total, low, high):
    """Published values of the 95 % score interval."""
    assert example("grade_jsonl").wilson(right, total) == pytest.approx((low, high), abs=5e-5)


def test_resident_engine(example, capsys):
    program = example("resident_engine")
    assert program.main(["--repeats", "2"]) == 0
    out = capsys.readouterr().out
    for message in program.MESSAGES:
        assert out.count(message) == 1
    assert re.search(r"^warm: median \d+ ms of 6 requests$", out, re.MULTILINE)
    assert re.search(r"^decisions: \d+$", out, re.MULTILINE)


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert 40 <= len(path.read_text("utf-8").splitlines()) <= 80, path


def test_examples_offer_help(example, capsys):
    for name in ("route_ticket", "grade_jsonl", "resident_engine"):
        with pytest.raises(SystemExit) as caught:
            example(name).main(["--help"])
        assert caught.value.code == 0
        assert "--model" in capsys.readouterr().out
    assert "jevify.engine" in sys.modules
