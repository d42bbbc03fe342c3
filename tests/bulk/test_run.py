"""Groups of rows through an engine: a tiny real one for the answers, a fake one for what goes wrong."""

import json

import pytest
import torch

import tiny
from fake_bulk import FakeBulk
from jevify import Choice, Noul, Score, Workflow
from jevify.bulk import run as runs
from jevify.bulk.files import Files
from jevify.bulk.journal import Journal
from jevify.bulk.jsonl import JsonlSource
from jevify.bulk.rows import Place, Row, RowReader
from jevify.bulk.run import Run
from jevify.bulk.state import State, read_state
from jevify.engine import DecisionEngine
from jevify.errors import JevifyError

pytestmark = pytest.mark.cpu
LATE = Workflow(questions={"late": Noul(instructions="Is it late?")})
MIXED = Workflow(
    questions={
        "team": Choice(instructions="Which team?", criteria=["billing", "technical", "refund"]),
        "late": Noul(instructions="Is it late?"),
        "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
    }
)


class Watch:
    def __init__(self):
        self.rows, self.notes = [], []

    def done(self, row):
        self.rows.append(row)

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.rejects")


@pytest.fixture(scope="module", params=["forked", "packed"])
def engine(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny", executor=request.param)
    torch.set_num_threads(threads)


def go(files, engine, *, workflow=LATE, tokens=10, stopped=lambda: False, state=None, source=None):
    """One sitting; returns the outcome, the watcher, the answers and the rejects."""
    watch = Watch()
    with Journal(files, state or State({})) as journal:
        run = Run(engine, RowReader(workflow), journal, tokens, "parallel", watch, stopped)
        outcome = run(source or JsonlSource(files.source))
    return outcome, watch, lines(files.output), lines(files.rejects)


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def save(files, *contexts):
    rows = (json.dumps({"context": context, "id": f"n{n}"}) for n, context in enumerate(contexts, 1))
    files.source.write_text("".join(f"{row}\n" for row in rows), "utf-8")


def numbers(records):
    return [record["row"] for record in records]


@pytest.mark.parametrize("tokens", [1, 900, 100_000])
def test_answers_are_those_of_rows_decided_alone(files, engine, tokens):
    contexts = [f"The parcel {n} arrived " + "late " * (7 * n % 40) for n in range(12)]
    rows = [{"id": n, "context": context} for n, context in enumerate(contexts)]
    rows.insert(3, {"context": "late " * 5000})
    rows.insert(5, {"id": "m", "messages": [{"role": "user", "content": "Where is it?"}]})
    rows.insert(7, {"id": "p", "context": "x", "prompts": {"late": "Is it red?"}})
    files.source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    outcome, watch, found, rejects = go(files, engine, workflow=MIXED, tokens=tokens)
    assert (outcome.decided, outcome.set_aside, outcome.by_row) == (14, 1, 0)
    assert [(entry["row"], "and the limit is 2048" in entry["reason"]) for entry in rejects] == [(4, True)]
    assert numbers(found) == [n for n in range(1, 16) if n != 4]
    assert watch.rows[-1] == 15
    counted = 0
    for record in found:
        row = rows[record["row"] - 1]
        assert record.get("id") == row.get("id")
        messages, prompts = row.get("messages"), row.get("prompts")
        alone = MIXED.run(engine, context=row.get("context"), messages=messages, prompts=prompts)
        for name, answer in alone["answers"].items():
            assert record["answers"][name]["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
            assert record["answers"][name].keys() == answer.keys()
        shared = alone["metadata"]["shared_prefix_tokens"]
        counted += shared + sum(entry["tokens"] - shared for entry in alone["metadata"]["questions"].values())
    assert outcome.tokens == counted


def test_near_ties_are_named_and_unknown_while_the_drift_is(files):
    save(files, "7 a", "500 b")
    _, _, found, _ = go(files, FakeBulk())
    assert [record["near_ties"] for record in found] == [[], ["late"]]
    torch.set_num_threads(1)
    fresh = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")
    files.output.unlink()
    assert [record["near_ties"] for record in go(files, fresh)[2]] == [None, None]


def test_rows_are_decided_together_up_to_the_budget(files):
    save(files, "1 a b c", "2 a b c", "3 a", "4 a b c d e f g h i j k", "5 a", "6 a")
    engine = FakeBulk()
    _, _, found, _ = go(files, engine)
    # 4 + 4 + 2 tokens are the budget of 10; a row of 12 is alone.
    assert engine.groups == [[1, 2, 3], [4], [5, 6]]
    assert [(entry["row"], entry["id"], entry["answers"]["late"]["noul"]) for entry in found] == [
        (n, f"n{n}", n / 1000) for n in range(1, 7)
    ]


def test_a_group_is_bounded_where_rows_cost_nothing(files, monkeypatch):
    monkeypatch.setattr(runs, "MOST_ROWS", 3)
    files.source.write_text("{}\n" * 7, "utf-8")
    _, watch, found, rejects = go(files, FakeBulk())
    assert (found, numbers(rejects), watch.rows) == ([], [1, 2, 3, 4, 5, 6, 7], [3, 6, 7])


def test_of_the_next_group_only_its_first_row_is_read(files):
    engine, read = FakeBulk(), []

    class Source:
        def rows(self, place):
            for number in range(1, 10):
                read.append((number, sum(map(len, engine.groups))))
                yield Row(number, Place(number), fields={"context": f"{number} a b"})

    go(files, engine, tokens=9, source=Source())
    # When rows 1 to 4 were asked for, nothing was decided yet; rows 5 to 7 came when 3 were.
    assert read == [(n, 3 * max(0, (n - 2) // 3)) for n in range(1, 10)]


def test_a_refused_row_is_set_aside_and_keeps_its_place(files):
    save(files, "1 a", "long", "3 a")
    with open(files.source, "ab") as file:
        file.write(b'{bad\n{"context": "", "id": 9}\n{"context": "6 a"}')
    engine = FakeBulk()
    outcome, _, found, rejects = go(files, engine)
    assert engine.groups == [[1, 3, 6]]
    assert (numbers(found), numbers(rejects)) == ([1, 3, 6], [2, 4, 5])
    assert [entry.get("id") for entry in rejects] == ["n2", None, 9]
    assert rejects[0]["reason"] == "$.questions.late: the full question is 9 tokens, and the limit is 8"
    assert (outcome.decided, outcome.set_aside) == (3, 3)


def test_a_row_that_breaks_its_group_is_set_aside_alone(files):
    save(files, "1 a", "2 break", "3 a", "4 a", "5 break", "6 a b c d", "7 a")
    outcome, watch, found, rejects = go(files, FakeBulk())
    assert numbers(found) == [1, 3, 4, 6, 7]
    assert [(entry["row"], entry["id"], entry["reason"]) for entry in rejects] == [
        (2, "n2", "RuntimeError: out of luck"),
        (5, "n5", "RuntimeError: out of luck"),
    ]
    assert outcome.by_row == 1
    [note] = watch.notes
    assert "rows 1 to 5 failed together and are decided one by one (RuntimeError: out of luck)" in note


def test_a_group_that_fails_only_together_loses_nothing(files):
    class Crowded(FakeBulk):
        def decide_many(self, requests, *, mode):
            if len(requests) > 1:
                raise MemoryError
            return super().decide_many(requests, mode=mode)

    save(files, *(f"{n} a" for n in range(1, 21)))
    outcome, watch, found, rejects = go(files, Crowded())
    assert (numbers(found), rejects) == (list(range(1, 21)), [])
    assert (outcome.by_row, len(watch.notes)) == (4, 1)


def test_three_failures_in_a_row_stop_the_run_before_the_first_of_them(files):
    save(files, "1 break", "2 a", "3 a", "long", "5 break", "long", "7 break a b c d e", "8 break", "9 a")
    engine = FakeBulk()
    with pytest.raises(
        JevifyError, match="the engine failed on 3 rows in a row, and the run stops after row 4"
    ) as told:
        go(files, engine)
    assert told.value.exit_code == 1
    assert "row 8: RuntimeError: out of luck" in str(told.value)
    state = read_state(files.state)
    assert (state.row, state.decided, state.set_aside) == (4, 2, 2)
    assert (numbers(lines(files.output)), numbers(lines(files.rejects))) == ([2, 3], [1, 4])

    class Mended(FakeBulk):
        def decide_many(self, requests, *, mode):
            return super().decide_many(
                [(context.replace("break", ""), asked) for context, asked in requests], mode=mode
            )

    _, _, found, rejects = go(files, Mended(), state=state)
    assert (numbers(found), numbers(rejects)) == ([2, 3, 5, 7, 8, 9], [1, 4, 6])


def test_failures_with_successes_between_them_do_not_stop_the_run(files):
    save(files, *(f"{n} {'break' if n % 3 else 'a'}" for n in range(1, 31)))
    _, _, found, rejects = go(files, FakeBulk())
    assert numbers(found) == list(range(3, 31, 3))
    assert len(rejects) == 20


def test_a_stop_is_between_groups_and_can_be_gone_on_with(files):
    save(files, *(f"{n} a b" for n in range(1, 11)))
    engine = FakeBulk()
    outcome, _, found, _ = go(files, engine, stopped=lambda: len(engine.groups) == 2)
    assert (outcome.interrupted, numbers(found)) == (True, [1, 2, 3, 4, 5, 6])
    outcome, _, found, _ = go(files, engine, state=read_state(files.state))
    assert (outcome.interrupted, outcome.decided, numbers(found)) == (False, 4, list(range(1, 11)))
    assert engine.groups == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_whatever_happens_after_a_commit_is_done_again(files, monkeypatch, seconds):
    """The engine dies in its third group in a way nothing catches."""
    monkeypatch.setattr(runs, "COMMIT_SECONDS", seconds)

    class Dies(FakeBulk):
        def decide_many(self, requests, *, mode):
            if len(self.groups) == 2:
                raise KeyboardInterrupt
            return super().decide_many(requests, mode=mode)

    save(files, *(f"{n} a b" for n in range(1, 11)))
    with pytest.raises(KeyboardInterrupt):
        go(files, Dies())
    state = read_state(files.state) or State({})
    assert state.row == (0 if seconds else 6)
    _, _, found, _ = go(files, FakeBulk(), state=state)
    assert numbers(found) == list(range(1, 11))
