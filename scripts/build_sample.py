"""Build benchmarks/data/sample.jsonl, the small labelled sample, from two packages fetched by name.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 -d DIR
    pip download --no-deps sdgclassification-benchmark==1.0.0 -d DIR
    python scripts/build_sample.py DIR

Rows: 60 movie snippets (positive or negative), 45 product snippets (three levels of satisfaction), 60 texts about
sustainable development goals (yes or no). Chosen by a fixed seed among texts of 40 to 400 characters whose human mean
rating leaves no doubt.
"""

import csv
import io
import json
import random
import sys
import tarfile
import zipfile
from pathlib import Path

OUT = Path(__file__).parent.parent / "benchmarks" / "data" / "sample.jsonl"
SEED = 20260918


def vader_texts(folder: Path, name: str) -> list[tuple[float, str]]:
    """Mean rating (-4 to 4) and text of every row of one of the inner tables."""
    with tarfile.open(folder / "vaderSentiment-3.3.2.tar.gz") as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        with tarfile.open(fileobj=inner) as tables:
            table = tables.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt").read().decode("utf-8")
    rows = [line.split("\t") for line in table.splitlines()]
    return [(float(rating), text.strip()) for _, rating, text in rows if 40 <= len(text.strip()) <= 400]


def goal_texts(folder: Path) -> list[dict[str, str]]:
    """Rows of the goal benchmark: sdg, text, label."""
    wheel = folder / "sdgclassification_benchmark-1.0.0-py3-none-any.whl"
    table = zipfile.ZipFile(wheel).read("sdgclassification/benchmark/resources/benchmark.csv").decode("utf-8")
    return [row for row in csv.DictReader(io.StringIO(table)) if 40 <= len(row["text"]) <= 400]


def sentiment(texts: list[tuple[float, str]], pick: random.Random) -> list[dict]:
    """30 clearly positive and 30 clearly negative snippets."""
    question = {
        "type": "choice",
        "instructions": "What is the sentiment of this movie review?",
        "criteria": ["negative", "positive"],
    }
    chosen = [("positive", text) for rating, text in texts if rating >= 2]
    rest = [("negative", text) for rating, text in texts if rating <= -2]
    return [_row(text, "sentiment", question, label) for label, text in pick.sample(chosen, 30) + pick.sample(rest, 30)]


def satisfaction(texts: list[tuple[float, str]], pick: random.Random) -> list[dict]:
    """15 snippets of each of three levels."""
    levels = ["The customer is dissatisfied", "The customer is neutral", "The customer is satisfied"]
    question = {"type": "score", "instructions": "How satisfied is the customer?", "criteria": levels}
    groups = (lambda rating: rating <= -2, lambda rating: abs(rating) < 0.3, lambda rating: rating >= 2)
    rows = []
    for level, belongs in enumerate(groups):
        chosen = pick.sample([text for rating, text in texts if belongs(rating)], 15)
        rows += [_row(text, "satisfaction", question, level) for text in chosen]
    return rows


def goals(rows: list[dict[str, str]], pick: random.Random) -> list[dict]:
    """30 texts about the named goal and 30 that are not."""
    found = []
    for label in (True, False):
        for row in pick.sample([row for row in rows if (row["label"] == "True") is label], 30):
            goal = GOALS[int(row["sdg"])]
            question = {"type": "noul", "instructions": f"Is this text about the following goal: {goal}?"}
            found.append(_row(row["text"], "about_goal", question, label))
    return found


GOALS = {
    1: "no poverty",
    2: "zero hunger",
    3: "good health and well-being",
    4: "quality education",
    5: "gender equality",
    6: "clean water and sanitation",
    7: "affordable and clean energy",
    8: "decent work and economic growth",
    9: "industry, innovation and infrastructure",
    10: "reduced inequalities",
    11: "sustainable cities and communities",
    12: "responsible consumption and production",
    13: "climate action",
    14: "life below water",
    15: "life on land",
    16: "peace, justice and strong institutions",
    17: "partnerships for the goals",
}


def _row(text: str, name: str, question: dict, label: object) -> dict:
    return {"context": text, "questions": {name: question}, "expected_labels": {name: label}}


def main() -> None:
    """Write the sample."""
    folder, pick = Path(sys.argv[1]), random.Random(SEED)
    rows = sentiment(vader_texts(folder, "movieReviewSnippets"), pick)
    rows += satisfaction(vader_texts(folder, "amazonReviewSnippets"), pick)
    rows += goals(goal_texts(folder), pick)
    OUT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
