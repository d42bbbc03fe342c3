"""`jevify batch`: what is refused, what is written, and that a killed run loses and repeats nothing."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

import fake_bulk
import tiny
from jevify.cli import batch
from jevify.cli.main import main

pytestmark = pytest.mark.cpu

TESTS = Path(fake_bulk.__file__).parent
LATE = {"questions": {"late": {"type": "noul", "instructions": "Is it late?"}}}
posix = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A fake engine, and a current folder with workflow.json and ten rows in in.jsonl."""
    monkeypatch.chdir(tmp_path)
    Path("workflow.json").write_text(json.dumps(LATE), "utf-8")
    save(10)
    made = fake_bulk.FakeBulk()
    monkeypatch.setattr(batch, "load", lambda args, settings: made)
    return made


def save(count):
    lines = (json.dumps({"context": f"{n} a b", "id": n}) for n in range(1, count + 1))
    Path("in.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def add(line):
    with open("in.jsonl", "ab") as file:
        file.write(line + b"\n")


def run(capsys, words):
    code = main(["batch", *words.split()])
    return (code, *capsys.readouterr())


def found(path="out.jsonl"):
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def rows(path="out.jsonl"):
    return [record["row"] for record in found(path)]


def state(path="out.jsonl"):
    try:
        return json.loads(Path(f"{path}.state.json").read_bytes())
    except FileNotFoundError:
        return {"row": 0, "finished": False}


def names():
    return sorted(path.name for path in Path().iterdir())


MADE = ["in.jsonl", "out.jsonl", "out.jsonl.state.json", "workflow.json"]


def test_every_row_is_answered_in_order(engine, capsys):
    code, out, err = run(capsys, "in.jsonl out.jsonl --batch-tokens 9")
    assert code == 0
    assert re.fullmatch(r"10 rows decided, 0 set aside; 10 rows in [\d.]+ s, [\d,.]+ rows/s, [\d,]+ tokens/s\n", out), (
        out
    )
    assert [line.split(" rows")[0] for line in err.splitlines()] == ["3 of 10", "6 of 10", "9 of 10", "10 of 10"]
    assert re.fullmatch(r"10 of 10 rows, [\d,.]+ rows/s, 0:00:00 left", err.splitlines()[-1])
    assert [(row["row"], row["id"], row["answers"]["late"]["noul"]) for row in found()] == [
        (n, n, n / 1000) for n in range(1, 11)
    ]
    assert (engine.groups, engine.warm) == ([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]], 1)
    assert names() == MADE
    assert state()["finished"] is True


def test_warm_up_can_be_left_out(engine, capsys):
    assert run(capsys, "in.jsonl out.jsonl --no-warmup")[0] == 0
    assert engine.warm == 0


def test_flags_reach_the_engine(engine, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(
        batch, "load", lambda args, settings: asked.append((args.model, args.dtype, settings)) or engine
    )
    words = "in.jsonl out.jsonl --model m --dtype bfloat16 --device cpu --executor packed --token-budget 99 --stable"
    assert run(capsys, words)[0] == 0
    assert asked == [("m", "bfloat16", {"executor": "packed", "token_budget": 99, "stable": True})]


def test_bad_rows_are_set_aside_and_the_rest_decided(engine, capsys):
    add(b"{bad")
    add(b'{"context": "12 a", "label": 3}')
    code, out, err = run(capsys, "in.jsonl out.jsonl --rejects aside.jsonl")
    assert (code, rows(), rows("aside.jsonl")) == (0, [*range(1, 11), 12], [11])
    assert out.startswith("11 rows decided, 1 set aside; ")
    assert 'fields that are not read: label; find their rows by "row" or "id"' in err
    assert "not valid JSON" in found("aside.jsonl")[0]["reason"]
    assert run(capsys, "in.jsonl out.jsonl --rejects aside.jsonl --resume --strict-rows")[0] == 1
    assert run(capsys, "in.jsonl out.jsonl --rejects aside.jsonl --force --strict-rows")[0] == 1
    save(10)
    assert run(capsys, "in.jsonl out.jsonl --rejects aside.jsonl --force --strict-rows")[0] == 0
    assert names() == MADE


def test_an_empty_file_gives_an_empty_file(engine, capsys):
    Path("in.jsonl").write_bytes(b"")
    code, out, err = run(capsys, "in.jsonl out.jsonl")
    assert (code, err, Path("out.jsonl").read_bytes()) == (0, "", b"")
    assert out.startswith("0 rows decided, 0 set aside; ")
    assert engine.groups == []


def test_a_finished_run_is_neither_repeated_nor_replaced_unasked(engine, capsys):
    assert run(capsys, "in.jsonl out.jsonl")[0] == 0
    before = Path("out.jsonl").read_bytes()
    code, _, err = run(capsys, "in.jsonl out.jsonl")
    assert (code, err) == (2, "jevify: out.jsonl: this run is finished; --force starts over\n")
    code, out, _ = run(capsys, "in.jsonl out.jsonl --resume")
    assert (code, out) == (0, "10 rows decided, 0 set aside; nothing was left to do\n")
    assert (Path("out.jsonl").read_bytes(), len(engine.groups)) == (before, 1)
    Path("out.jsonl").unlink()
    code, _, err = run(capsys, "in.jsonl out.jsonl --resume")
    assert (code, "its output is gone: --force starts over" in err) == (2, True)
    assert run(capsys, "in.jsonl out.jsonl --force")[0] == 0
    assert Path("out.jsonl").read_bytes() == before


def test_force_leaves_nothing_of_the_run_before(engine, capsys):
    add(b"{bad")
    assert run(capsys, "in.jsonl out.jsonl")[0] == 0
    assert "out.jsonl.rejects.jsonl" in names()
    save(2)
    assert run(capsys, "in.jsonl out.jsonl --force")[0] == 0
    assert (rows(), names()) == ([1, 2], MADE)


def test_resume_without_a_run_before_begins_one(engine, capsys):
    assert run(capsys, "in.jsonl out.jsonl --resume")[0] == 0
    assert rows() == list(range(1, 11))


def test_another_files_content_is_not_replaced(engine, capsys):
    Path("out.jsonl").write_text("precious")
    for flag in ("", "--resume"):
        code, _, err = run(capsys, f"in.jsonl out.jsonl {flag}")
        assert (code, "out.jsonl: exists, and no state of a run" in err) == (2, True)
    assert Path("out.jsonl").read_text() == "precious"


def stopped(engine, capsys, words="in.jsonl out.jsonl --batch-tokens 9"):
    """A run that stops with six of ten rows decided, since the engine fails on the rest."""
    real, engine.decide_many = engine.decide_many, lambda requests, mode: dying(real, engine, requests, mode)
    assert run(capsys, words)[0] == 1
    engine.decide_many = real


def dying(real, engine, requests, mode):
    if len(engine.groups) >= 2:
        raise RuntimeError("the device is gone")
    return real(requests, mode=mode)


def test_a_run_that_stopped_is_gone_on_with(engine, capsys):
    stopped(engine, capsys)
    assert (rows(), state()["row"], state()["finished"]) == ([1, 2, 3, 4, 5, 6], 6, False)
    code, _, err = run(capsys, "in.jsonl out.jsonl")
    assert (code, "stopped after row 6: go on with --resume; --force starts over" in err) == (2, True)
    code, out, _ = run(capsys, "in.jsonl out.jsonl --resume --batch-tokens 6")
    assert (code, rows()) == (0, list(range(1, 11)))
    assert out.startswith("10 rows decided, 0 set aside; 4 rows in ")
    assert engine.groups[2:] == [[7, 8], [9, 10]]


def test_a_torn_last_line_is_cut(engine, capsys):
    stopped(engine, capsys)
    with open("out.jsonl", "ab") as file:
        file.write(b'{"row": 7, "id": 7, "answers": {"la')
    assert run(capsys, "in.jsonl out.jsonl --resume")[0] == 0
    assert rows() == list(range(1, 11))


def change_input(engine):
    add(b'{"context": "11 a"}')


def change_a_decided_row(engine):
    Path("in.jsonl").write_bytes(Path("in.jsonl").read_bytes().replace(b'"1 a b"', b'"1 a c"'))


def change_workflow(engine):
    Path("workflow.json").write_text(json.dumps(LATE).replace("Is it late?", "Is it early?"))


def change_model(engine):
    engine.changes = {"model": "other"}


def change_weights(engine):
    engine.changes = {"weights": "v"}


def change_settings(engine):
    engine.changes = {"settings": {"temperature": 2.0}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_input, "the input has changed since the run that began"),
        (change_a_decided_row, "the input has changed since the run that began"),
        (change_workflow, "the workflow has changed since the run that began"),
        (change_model, 'model is "other", and was "fake"'),
        (change_weights, "the weights have changed"),
        (change_settings, "temperature is 2.0, and was null"),
    ],
)
def test_answers_of_two_different_runs_are_not_mixed(engine, capsys, change, told):
    stopped(engine, capsys)
    before, asked = Path("out.jsonl").read_bytes(), len(engine.groups)
    change(engine)
    code, _, err = run(capsys, "in.jsonl out.jsonl --resume")
    assert code == 2
    assert told in err
    assert "answers of both would be mixed in out.jsonl" in err
    assert (Path("out.jsonl").read_bytes(), len(engine.groups)) == (before, asked)


def test_an_input_that_changes_during_the_run_is_told(engine, capsys):
    real = engine.decide_many
    engine.decide_many = lambda requests, mode: [add(b"{}"), real(requests, mode=mode)][1]
    code, _, err = run(capsys, "in.jsonl out.jsonl --batch-tokens 100")
    assert (code, "in.jsonl: was changed during the run" in err) == (2, True)
    assert state()["finished"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("none.jsonl out.jsonl", "none.jsonl: cannot be read (No such file or directory)"),
        ("in.jsonl none/out.jsonl", "none/out.jsonl: there is no folder none: create it first"),
        ("in.jsonl in.jsonl", "in.jsonl: is read as input by this run"),
        ("in.jsonl ./in.jsonl --force", "in.jsonl: is read as input by this run"),
        ("in.jsonl workflow.json --force", "workflow.json: is read as input by this run"),
        ("in.jsonl out.jsonl --rejects in.jsonl", "in.jsonl: is read as input by this run"),
        ("in.jsonl out.jsonl --rejects out.jsonl", "--rejects out.jsonl: is written by this run already"),
        ("in.jsonl .", ".: is a folder: name a file"),
        ("- out.jsonl", "a stream could not be gone on with"),
        ("in.jsonl -", "-: give a file"),
        ("in.jsonl", "the following arguments are required: OUT"),
        ("in.jsonl out.jsonl --resume --force", "not allowed with argument"),
        ("in.jsonl out.jsonl --batch-tokens 0", "--batch-tokens is 0"),
        ("in.jsonl out.jsonl --workflow none.json", "none.json: there is no such file"),
        ("in.jsonl out.jsonl --calibration f", "--calibration is not in this version"),
        ("in.jsonl out.jsonl --mode parallel --executor independent", "--mode parallel contradicts"),
        ("in.jsonl out.jsonl --executor packed --branch-batch-size 2", "has no effect on the packed executor"),
        ("in.jsonl out.jsonl --device tpu", "--device is 'tpu'"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_loads(engine, capsys, monkeypatch, words, told):
    monkeypatch.setattr(batch, "load", lambda *_: pytest.fail("the model was loaded"))
    code, _, err = run(capsys, words)
    assert code == 2
    assert told in err
    assert names() == ["in.jsonl", "workflow.json"]


def test_two_runs_on_one_output_do_not_meet(engine, capsys):
    from filelock import FileLock

    with FileLock("out.jsonl.lock"):
        code, _, err = run(capsys, "in.jsonl out.jsonl")
    assert (code, err) == (2, "jevify: out.jsonl: another jevify batch is writing it: wait for its end\n")
    assert engine.groups == []
    assert run(capsys, "in.jsonl out.jsonl")[0] == 0


def test_help_names_every_flag(capsys):
    assert main(["batch", "--help"]) == 0
    out = capsys.readouterr().out
    flags = "workflow batch-tokens rejects strict-rows resume force model executor stable"
    for flag in flags.split():
        assert f"  --{flag}" in out


def child(pause, *words, **options):
    """`jevify batch` in a process of its own: on the fake engine when there is a pause for it, else on a real one."""
    folders = [str(TESTS.parent / "src"), str(TESTS), *sys.path]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)}
    program = ["-m", "jevify"] if pause is None else [fake_bulk.__file__, str(pause)]
    return subprocess.Popen([sys.executable, *program, "batch", *words], env=environment, **options)


def wait_until(true, process):
    deadline = monotonic() + 120
    while not true():
        assert process.poll() is None, "the run ended too early"
        assert monotonic() < deadline
        sleep(0.01)


@posix
def test_kills_at_any_moment_lose_and_repeat_nothing(engine):
    """Killed four times, two of them as if in the middle of a write; every tenth row is a bad one."""
    save(0)
    for n in range(1, 601):
        add(b"{bad" if n % 10 == 0 else json.dumps({"context": f"{n} a b", "id": f"m{n}"}).encode())
    words = ("in.jsonl", "out.jsonl", "--batch-tokens", "15", "--resume")
    for attempt in range(4):
        process = child(100, *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = state()["row"]
        wait_until(lambda before=before: state()["row"] > before, process)
        sleep(random.Random(attempt).random())
        process.kill()
        process.wait()
        assert state()["finished"] is False
        if attempt % 2:
            with open("out.jsonl", "ab") as file:
                file.write(b'{"row": 999, "ans')
    assert child(0, *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(timeout=120) == 0
    assert rows() == [n for n in range(1, 601) if n % 10]
    assert rows("out.jsonl.rejects.jsonl") == list(range(10, 601, 10))
    assert [(row["id"], row["answers"]["late"]["noul"]) for row in found()] == [
        (f"m{n}", n / 1000) for n in range(1, 601) if n % 10
    ]
    assert names() == sorted([*MADE, "out.jsonl.rejects.jsonl"])


@posix
def test_a_real_engine_goes_on_after_a_kill(engine, tmp_path):
    """A tiny checkpoint from disk: the answers of the killed run and the one after it are those of one run."""
    tiny.model("qwen2").save_pretrained(tmp_path / "tiny")
    tiny.tokenizer().save_pretrained(tmp_path / "tiny")
    save(1500)
    words = ["--model", "./tiny", "--device", "cpu", "--batch-tokens", "500", "--no-warmup", "--local-files-only"]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = child(None, "in.jsonl", "out.jsonl", *words, **options)
    wait_until(lambda: state()["row"] > 0, process)
    process.kill()
    process.wait()
    stopped_at = state()["row"]
    assert 0 < stopped_at < 1500
    assert child(None, "in.jsonl", "out.jsonl", *words, "--resume", **options).wait(timeout=300) == 0
    assert rows() == list(range(1, 1501))
    from jevify.engine import DecisionEngine

    alone = DecisionEngine.from_pretrained(str(tmp_path / "tiny"), device="cpu", local_files_only=True)
    for record in found()[:: max(1, stopped_at // 10)]:
        wanted = alone.decide(f"{record['row']} a b", LATE["questions"])["answers"]["late"]["noul"]
        assert record["answers"]["late"]["noul"] == pytest.approx(wanted, abs=1e-5)
    # Markers tell rows apart: neighbours do not have the same answer.
    assert len({record["answers"]["late"]["noul"] for record in found()}) > 500


@posix
def test_ctrl_c_finishes_the_rows_at_hand(engine, capsys):
    save(100)
    process = child(300, "in.jsonl", "out.jsonl", "--batch-tokens", "9", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: state()["row"] > 0, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert b"the rows at hand are decided first" in err
    assert f"interrupted after row {state()['row']} of 100: go on with --resume".encode() in err
    assert rows() == list(range(1, state()["row"] + 1))
    assert 0 < len(rows()) < 100
    assert run(capsys, "in.jsonl out.jsonl --resume")[0] == 0
    assert rows() == list(range(1, 101))


@posix
def test_a_second_ctrl_c_stops_at_once(engine, capsys):
    process = child(60_000, "in.jsonl", "out.jsonl", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: Path("out.jsonl.state.json").exists(), process)
    sleep(0.5)
    process.send_signal(signal.SIGINT)
    while b"Ctrl-C again" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.communicate()
    assert state()["row"] == 0
    assert run(capsys, "in.jsonl out.jsonl --resume")[0] == 0
    assert rows() == list(range(1, 11))


@posix
def test_a_disk_that_takes_no_more_ends_the_run_and_it_can_be_gone_on_with(engine, capsys):
    """A limit on the size of files does what a full disk does: a write takes a part, and the next one fails."""
    import resource

    save(100)
    process = child(
        0,
        *("in.jsonl", "out.jsonl", "--batch-tokens", "9"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000)),
    )
    _, err = process.communicate()
    assert process.returncode == 1
    assert b"jevify: out.jsonl: cannot be written (File too large): mend that and go on with --resume" in err
    assert (Path("out.jsonl").stat().st_size, state()["row"]) == (5_000, 0)
    assert run(capsys, "in.jsonl out.jsonl --resume")[0] == 0
    assert rows() == list(range(1, 101))


@posix
def test_a_terminal_shows_rate_and_time_left(engine, tmp_path):
    from terminal import Terminal

    save(40)
    words = ("batch", "in.jsonl", "out.jsonl", "--batch-tokens", "9")
    with Terminal(fake_bulk.__file__, "100", *words, cwd=tmp_path) as session:
        assert session.finish() == 0
    assert re.search(r"━+ +\d+/40 [\d.]+ rows/s 0:00:0\d", session.shown), session.shown
    assert "40/40" in session.shown
    assert "40 rows decided, 0 set aside; 40 rows in " in session.shown


def test_parquet_goes_in_and_out(engine, capsys):
    pa = pytest.importorskip("pyarrow", reason="pip install 'jevify[batch]'")
    import pyarrow.parquet as pq

    contexts = [None if n == 4 else f"{n} a b" for n in range(1, 11)]
    pq.write_table(pa.table({"context": contexts, "id": range(101, 111), "label": contexts}), "in.parquet")
    assert run(capsys, "in.parquet out.jsonl")[0] == 0
    code, out, err = run(capsys, "in.parquet out.parquet --batch-tokens 9")
    assert (code, "fields that are not read: label" in err) == (0, True)
    assert out.startswith("9 rows decided, 1 set aside; ")
    table = pq.read_table("out.parquet")
    assert table.to_pylist() == found()
    assert table.column("id").to_pylist() == [n for n in range(101, 111) if n != 104]
    assert [(row["row"], row["id"]) for row in found("out.parquet.rejects.jsonl")] == [(4, 104)]
    assert "out.parquet.partial.jsonl" not in names()


def test_a_parquet_output_goes_on_from_its_partial_lines(engine, capsys, monkeypatch):
    pytest.importorskip("pyarrow", reason="pip install 'jevify[batch]'")
    import pyarrow.parquet as pq

    stopped(engine, capsys, "in.jsonl out.parquet --batch-tokens 9")
    assert (rows("out.parquet.partial.jsonl"), Path("out.parquet").exists()) == ([1, 2, 3, 4, 5, 6], False)

    def killed(*args):
        raise KeyboardInterrupt

    # First killed after all rows, before the file is there; then with the file there and not yet said to be.
    with monkeypatch.context() as broken:
        broken.setattr(batch, "write_parquet", killed)
        assert run(capsys, "in.jsonl out.parquet --resume")[0] == 130
    assert (state("out.parquet")["row"], Path("out.parquet").exists()) == (10, False)
    with monkeypatch.context() as broken:
        broken.setattr(batch.Journal, "finish", killed)
        assert run(capsys, "in.jsonl out.parquet --resume")[0] == 130
    assert run(capsys, "in.jsonl out.parquet --resume")[0] == 0
    assert pq.read_table("out.parquet").column("row").to_pylist() == list(range(1, 11))
    assert names() == ["in.jsonl", "out.parquet", "out.parquet.state.json", "workflow.json"]
