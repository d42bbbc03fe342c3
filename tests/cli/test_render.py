"""What people see: safe text, honest percentages, lines that fit."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from jevify.cli.render import bar, percent, show, visible

pytestmark = pytest.mark.cpu


def decision(answers, **metadata):
    return {
        "model": "smollm2-135m",
        "answers": answers,
        "probability_status": "uncalibrated answer-token probabilities",
        "metadata": {
            "executor": "packed",
            "dtype": "bfloat16",
            "device": "cuda:0",
            "forward_calls": 1,
            "shared_prefix_tokens": 250,
            "stages_ms": {"prepare": 1.0, "forward": 40.4, "scoring": 2.0, "total": 43.6},
            "optimizations": {},
            **metadata,
        },
    }


def choice(shares):
    best = max(shares, key=shares.get)
    return {"type": "choice", "choice": best, "confidence": 0.4, "probabilities": shares}


def rendered(result, evaluation=None, width=80, **options):
    screen = io.StringIO()
    show(result, Console(file=screen, width=width, **options), evaluation)
    return screen.getvalue()


MIXED = {
    "department": choice({"billing": 0.6, "shipping": 0.3, "other": 0.1}),
    "refund": {"type": "noul", "noul": 0.25, "probabilities": {"no": 0.75, "yes": 0.25}},
    "severity": {
        "type": "score",
        "score": 1.5,
        "legend": {"0": "minor", "1": "moderate", "2": "severe"},
        "probabilities": {"0": 0.1, "1": 0.3, "2": 0.6},
        "confidence": 0.25,
    },
}


def test_a_block_for_each_question():
    lines = [line.rstrip() for line in rendered(decision(MIXED)).splitlines()]
    assert lines == [
        "smollm2-135m  packed · bfloat16 · cuda:0",
        "",
        "department  billing  confidence 0.40",
        f"  billing     {'█' * 18:30}   60.0 %",
        f"  shipping    {'█' * 9:30}   30.0 %",
        f"  other       {'█' * 3:30}   10.0 %",
        "",
        "refund  no  probability of yes 0.250",
        f"  no          {'█' * 22 + '▌':30}   75.0 %",
        f"  yes         {'█' * 7 + '▌':30}   25.0 %",
        "",
        "severity  1.50  on a scale of 0 to 2  confidence 0.25",
        f"  0 minor     {'█' * 3:30}   10.0 %",
        f"  1 moderate  {'█' * 9:30}   30.0 %",
        f"  2 severe    {'█' * 18:30}   60.0 %",
        "",
        "44 ms (prepare 1, forward 40, scoring 2) · 1 forward call · 250 shared tokens",
        "Probabilities are those of the model's answer tokens, uncalibrated: they rank",
        "the options, and are not measured chances of being right.",
    ]


def test_matches_are_marked():
    evaluation = {
        "department": {"expected": "shipping", "answer": "billing", "matched": False},
        "refund": {"expected": "no", "answer": "no", "matched": True},
    }
    shown = rendered(decision(MIXED), evaluation)
    assert "department  billing  confidence 0.40  ✗ expected shipping" in shown
    assert "refund  no  probability of yes 0.250  ✓ as expected" in shown
    assert "1 of 2 answers as expected" in shown
    assert "severity  1.50  on a scale of 0 to 2  confidence 0.25\n" in shown


def test_fallbacks_are_told_with_their_reasons():
    active = {"fallbacks": {"cuda_graphs": "no [cuda] here"}, "counters": {"last_copy_fallback": "odd cache"}}
    shown = rendered(decision(MIXED, optimizations=active))
    assert "fell back: cuda_graphs: no [cuda] here\n" in shown
    assert "fell back: copy: odd cache\n" in shown


def test_an_unknown_status_is_shown_as_it_is():
    result = {**decision(MIXED), "probability_status": "calibrated on profile 7"}
    assert rendered(result).endswith("calibrated on profile 7\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [red]text[/red]", "plain [red]text[/red]"),
        ("two\nlines\r\n\ttab", "two\\nlines\\r\\n\\ttab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("abc\u202edef\u2028", "abc\\u202edef\\u2028"),
        ("lone \udcff", "lone \\udcff"),
        ("Où ça\u00a0? 日本\u3000語 👩‍👧", "Où ça\u00a0? 日本\u3000語 👩‍👧"),
    ],
)
def test_text_is_one_safe_line(text, shown):
    assert visible(text) == shown


HOSTILE = {
    "[bold]": 0.1,
    "[/red]": 0.1,
    "line\nbreak": 0.2,
    "\x1b[2Jgone": 0.1,
    ":smile:": 0.1,
    "x" * 300: 0.1,
    "語" * 60: 0.3,
}


@pytest.mark.parametrize("width", [20, 34, 80, 200])
def test_hostile_labels_take_one_line_each_and_fit(width):
    question = "[link=x]q\nuestion" + "z" * 100
    shown = rendered(decision({question: choice(HOSTILE)}), width=width, force_terminal=True)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert "\x1b" not in plain
    lines = plain.split("\n")
    assert max(map(cell_len, lines)) <= width
    rows = [line for line in lines if line.endswith("0 %")]
    assert len(rows) == len(HOSTILE)
    if width >= 80:
        for text in ("[bold]", "[/red]", "line\\nbreak", "\\x1b[2Jgone", ":smile:", "[link=x]q\\nuestion"):
            assert text in plain
        assert sum("█" in row for row in rows) == len(rows)


def test_no_color_leaves_no_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = rendered(decision(MIXED), force_terminal=True)
    assert not re.search(r"\x1b\[[\d;]*3\d", shown)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert re.search(r"\x1b\[[\d;]*3\d", rendered(decision(MIXED), force_terminal=True))


def test_many_options_are_summed_up():
    shares = {f"label {index}": 0.001 for index in range(254)} | {"best": 0.746}
    shown = rendered(decision({"q": choice(shares)}))
    rows = re.findall(r"^  (.*?)  +[█▏▎▍▌▋▊▉]+ +(<?[\d.]+ %)$", shown, re.MULTILINE)
    assert [label for label, _ in rows] == [*(f"label {i}" for i in range(10)), "best", "(244 others)"]
    assert rows[-1][1] == "24.4 %"
    assert rows[-2][1] == "74.6 %"


def test_bars_are_drawn_in_eighths():
    assert bar(0, 10) == ""
    assert bar(1, 10) == "█" * 10
    assert bar(0.5, 10) == "█" * 5
    assert bar(0.55, 10) == "█" * 5 + "▌"
    assert bar(1e-9, 10) == "▏"


def test_percentages_claim_no_certainty():
    assert [percent(share) for share in (0, 0.0004, 0.0006, 0.5, 0.9994, 0.9996, 1)] == [
        "0.0 %",
        "<0.1 %",
        "0.1 %",
        "50.0 %",
        "99.9 %",
        ">99.9 %",
        "100.0 %",
    ]


def tied(near, settled, **drift):
    questions = {
        "department": {"lead": 0.01, "near_tie": near, "settled": settled},
        "refund": {"lead": 3.0, "near_tie": False, "settled": False},
    }
    drift = {"nats": 0.125, "status": "measured", "safety": 2.0, **drift}
    answers = {name: MIXED[name] for name in questions}
    lines = [line.rstrip() for line in rendered(decision(answers, questions=questions, drift=drift)).splitlines()]
    return [line for line in lines if line.startswith(("department", "refund"))], " ".join(lines)


def test_a_near_tie_is_marked_and_explained_once():
    heads, text = tied(True, False)
    assert heads == ["department  billing  confidence 0.40  ≈ near tie", "refund  no  probability of yes 0.250"]
    wanted = (
        "≈ near tie: the first two options are within 2 x 0.12 nats, which precision and batch shape may move; "
        "--stable settles it"
    )
    assert text.count(wanted) == 1


def test_a_settled_tie_says_so():
    heads, text = tied(True, True)
    assert heads[0] == "department  billing  confidence 0.40  ≈ settled"
    assert "scored again alone, in fp32" in text
    assert "--stable" not in text


def test_an_exact_tie_of_the_reference_has_nothing_to_settle():
    _, text = tied(True, False, nats=0.0, status="none")
    assert "≈: the first two options are exactly even" in text
    assert "--stable" not in text


@pytest.mark.parametrize("near", [False, "unknown"])
def test_what_is_no_known_tie_is_not_marked(near):
    assert "≈" not in tied(near, False)[1]
