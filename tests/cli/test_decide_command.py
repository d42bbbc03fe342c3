"""One-shot decisions: what is read, what is printed, and the exit codes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fake_decider
from jevify.cli import decide, loading
from jevify.cli.main import main
from jevify.errors import InputError, JevifyError
from jevify.models import catalog

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
FAKE = fake_decider.__file__
QUESTIONS = {
    "department": {"type": "choice", "instructions": "Where to?", "criteria": ["billing", "café", "other"]},
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
    "severity": {"type": "score", "criteria": ["low", "middle", "high"]},
}


@pytest.fixture
def decider(tmp_path, monkeypatch):
    """A fake engine, and a current folder with workflow.json, one.json (one bare question) and text.txt."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "workflow.json", {"questions": QUESTIONS})
    save(tmp_path / "one.json", {"questions": {"bare": {"type": "choice", "criteria": ["a", "b", "c"]}}})
    (tmp_path / "text.txt").write_text("Grüße\r\naus der Datei\n", "utf-8", newline="")
    made = fake_decider.FakeDecider()
    monkeypatch.setattr(decide, "load_engine", made.load)
    return made


def save(path, value):
    path.write_text(json.dumps(value), "utf-8")


def run(capsys, *words):
    """Exit code, parsed stdout (None when there is none) and stderr."""
    code = main(words)
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def feed(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


def test_a_piped_result_is_json(decider, capsys):
    assert main(["--context", "I am late"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert list(result) == ["model", "answers", "probability_status", "metadata"]
    assert result["answers"]["department"]["choice"] == "café"
    assert out == json.dumps(result, ensure_ascii=False, indent=2) + "\n"
    ((context, workflow, mode),) = decider.log
    assert (context, mode, list(workflow.questions)) == ("I am late", "parallel", list(QUESTIONS))


def test_flags_reach_the_engine(decider, capsys):
    words = (
        "--context x --model here/there --revision v2 --local-files-only --device cpu --dtype bfloat16 "
        "--executor packed --token-budget 512 --temperature 2"
    )
    assert main(words.split()) == 0
    assert decider.loaded == [
        (
            "here/there",
            {
                "revision": "v2",
                "local_files_only": True,
                "device": "cpu",
                "dtype": "bfloat16",
                "executor": "packed",
                "token_budget": 512,
                "temperature": 2.0,
            },
        )
    ]


@pytest.mark.parametrize("words", ["", "--mode independent", "--executor packed"])
def test_stable_is_a_setting_of_every_executor(decider, capsys, words):
    assert main(["--context", "x", "--stable", *words.split()]) == 0
    assert decider.loaded[0][1]["stable"] is True


@pytest.mark.parametrize("words", ["--mode independent", "--executor independent"])
def test_the_oracle_by_mode_or_executor(decider, capsys, words):
    assert main(["--context", "x", *words.split()]) == 0
    assert decider.log[0][2] == "independent"
    assert decider.loaded[0][1]["executor"] == "independent"


def test_context_files_are_utf8_to_the_byte(decider, capsys, tmp_path):
    assert run(capsys, "--context-file", "text.txt")[0] == 0
    assert decider.log[0][0] == "Grüße\r\naus der Datei\n"
    Path("bad.txt").write_bytes(b"12345\xffrest")
    code, _, err = run(capsys, "--context-file", "bad.txt")
    assert code == 2
    assert "bad.txt: not UTF-8 text (byte 5 cannot be read)" in err


def test_standard_input_is_utf8_whatever_the_locale(decider, capsys, monkeypatch):
    feed(monkeypatch, "über\n".encode())
    assert run(capsys, "--context-file", "-")[0] == 0
    assert decider.log[0][0] == "über\n"
    feed(monkeypatch, b"abc\xfe")
    code, _, err = run(capsys, "--context-file", "-")
    assert code == 2
    assert "standard input: not UTF-8 text (byte 3 cannot be read)" in err
    feed(monkeypatch, b" \n")
    code, _, err = run(capsys, "--context-file", "-")
    assert code == 2
    assert "standard input: is empty" in err


def test_a_prompt_goes_with_a_context(decider, capsys):
    assert run(capsys, "--workflow", "one.json", "--context", "x", "--prompt", "Which?")[0] == 0
    assert decider.log[0][1].questions["bare"].instructions == "Which?"
    code, _, err = run(capsys, "--workflow", "one.json", "--context", "x")
    assert code == 2
    assert 'question "bare" has neither instructions nor described options' in err
    assert '--prompt TEXT or in "prompts" of a file for --request FILE' in err
    assert "$" not in err
    code, _, err = run(capsys, "--context", "x", "--prompt", "Which?")
    assert code == 2
    assert "--prompt: asks the only question of a workflow, and this one has 3" in err
    assert 'with the ids "department", "angry", "severity"' in err
    code, _, err = run(capsys, "--workflow", "one.json", "--context", "x", "--prompt", " ")
    assert (code, err) == (2, "jevify: --prompt: is empty: write what to ask\n")


def test_several_questions_without_a_prompt_are_each_told(decider, capsys):
    bare = {"type": "choice", "criteria": ["a", "b"]}
    save(Path("workflow.json"), {"questions": {"one": bare, "two": bare, **QUESTIONS}})
    code, _, err = run(capsys, "--context", "x")
    assert (code, decider.loaded) == (2, [])
    assert [line.split(" has ")[0] for line in err.splitlines()] == ['jevify: question "one"', 'jevify: question "two"']
    assert err.count('"prompts" of a file for --request FILE') == 2
    assert "--prompt" not in err


def test_a_request_file(decider, capsys, tmp_path):
    messages = [{"role": "user", "content": "help"}]
    save(tmp_path / "request.json", {"messages": messages, "prompts": {"angry": "Is it shouting?"}})
    assert run(capsys, "--request", "request.json")[0] == 0
    context, workflow, _ = decider.log[0]
    assert context == {"messages": messages}
    assert workflow.questions["angry"].instructions == "Is it shouting?"
    save(tmp_path / "request.json", {"prompts": {"nobody": "?"}, "context": "x"})
    code, _, err = run(capsys, "--request", "request.json")
    assert code == 2
    assert "request.json: $.prompts.nobody" in err


def test_an_input_file_with_expected_labels_is_evaluated(decider, capsys, tmp_path):
    labels = {"department": "café", "angry": False, "severity": 0}
    save(tmp_path / "input.json", {"context": {"a": 1}, "questions": QUESTIONS, "expected_labels": labels})
    code, result, _ = run(capsys, "--input", "input.json")
    assert code == 0
    assert decider.log[0][0] == {"a": 1}
    # The fake says café, yes and level 0.
    assert result["evaluation"] == {
        "department": {"expected": "café", "answer": "café", "matched": True},
        "angry": {"expected": "no", "answer": "yes", "matched": False},
        "severity": {"expected": "0", "answer": "0", "matched": True},
    }
    assert (result["matched"], result["total"]) == (2, 3)


def test_an_input_file_without_labels_is_not_evaluated(decider, capsys, tmp_path):
    save(tmp_path / "input.json", {"context": "x", "questions": QUESTIONS})
    Path("workflow.json").unlink()
    _, result, _ = run(capsys, "--input", "input.json")
    assert "evaluation" not in result
    assert "total" not in result


BAD = [
    ("--workflow nope.json --context x", "nope.json: there is no such file: give the questions with --workflow"),
    ("--context-file nope.txt", "nope.txt: cannot be read"),
    ("--context-file .", "cannot be read"),
    ("--input text.txt", "text.txt: line 1, column 1: not valid JSON"),
    ("--request workflow.json", "workflow.json: $.questions: is not a known field"),
    ("--workflow text.txt --context x", "not valid JSON"),
    ("--context x --output .", "is a folder"),
    ("--context x --output none/o.json", "there is no folder"),
    ("--context x --output workflow.json", "is read as input"),
    ("--context-file text.txt --output ./text.txt", "is read as input"),
    ("--context x --output text.txt/o.json", "there is no folder"),
]


@pytest.mark.parametrize(("words", "said"), BAD)
def test_bad_input_is_told_before_the_model_loads(decider, capsys, words, said):
    code, result, err = run(capsys, *words.split())
    assert (code, result, decider.loaded) == (2, None, [])
    assert said in err
    assert all(line.startswith("jevify: ") for line in err.splitlines())


def test_no_workflow_in_the_folder(decider, capsys):
    Path("workflow.json").unlink()
    code, _, err = run(capsys, "--context", "x")
    assert code == 2
    assert "workflow.json: there is no such file in this folder: give the questions with --workflow FILE" in err


def test_too_many_questions_are_told_before_the_model_loads(decider, capsys):
    many = {f"q{number}": QUESTIONS["angry"] for number in range(33)}
    save(Path("workflow.json"), {"questions": many})
    for words in (["--context", "x"], ["--interactive"]):
        code, _, err = run(capsys, *words)
        assert (code, decider.loaded) == (2, [])
        assert "has 33 questions, and the limit is 32" in err


def test_output_is_a_copy_written_whole(decider, capsys):
    assert main(["--context", "é", "--output", "result.json"]) == 0
    assert Path("result.json").read_text("utf-8") == capsys.readouterr().out
    Path("result.json").chmod(0o640)
    Path("link.json").symlink_to("result.json")
    assert run(capsys, "--context", "again", "--output", "link.json")[0] == 0
    assert json.loads(Path("result.json").read_bytes())["metadata"]["context"] == "again"
    assert Path("result.json").stat().st_mode & 0o777 == 0o640
    assert Path("link.json").is_symlink()
    assert not [path for path in Path().iterdir() if path.name.startswith(".jevify")]


def test_standard_input_is_no_output(decider, tmp_path):
    with open(tmp_path / "text.txt", "rb") as text:
        process = child(tmp_path, "--context-file", "-", "--output", "text.txt", stdin=text, stderr=subprocess.PIPE)
        _, err = process.communicate()
    assert process.returncode == 2
    assert b"--output text.txt: is read as input by this run" in err
    assert "Datei" in Path("text.txt").read_text("utf-8")


def test_a_device_is_no_output(decider, capsys):
    code, _, err = run(capsys, "--context", "x", "--output", os.devnull)
    assert (code, decider.loaded) == (2, [])
    assert "not a regular file" in err


def test_a_file_that_cannot_be_written_keeps_the_printed_answer(decider, capsys, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, result, err = run(capsys, "--context", "x", "--output", "o.json")
    assert code == 1
    assert result["model"] == "fake"
    assert "--output o.json: cannot be written (No space left on device)" in err
    assert sorted(path.name for path in Path().iterdir()) == ["one.json", "text.txt", "workflow.json"]


def test_warm_up_only_when_asked(decider, capsys):
    assert main(["--context", "x"]) == 0
    assert main(["--context", "x", "--no-warmup"]) == 0
    assert [entry[0] for entry in decider.log] == ["x", "x"]
    assert main(["--context", "x", "--warmup"]) == 0
    assert [entry[0] for entry in decider.log[2:]] == ["warmup", "x"]
    assert list(decider.log[2][1].questions) == list(QUESTIONS)


def test_one_shot_graphs_come_with_a_notice(decider, capsys):
    code, _, err = run(capsys, "--context", "x", "--cuda-graphs", "--device", "cpu")
    assert code == 0
    assert "captured in a one-shot run will not be reused" in err


def test_failures_have_their_exit_codes(decider, capsys, monkeypatch):
    code, result, err = run(capsys, "--context", "refuse")
    assert (code, result, err) == (2, None, "jevify: too long: shorten it\n")
    code, result, err = run(capsys, "--context", "break")
    assert (code, result) == (1, None)
    assert err.startswith("Traceback")
    assert err.endswith("jevify: unexpected error: RuntimeError: out of luck\n")

    def fail(error):
        def load(*args, **kwargs):
            raise error

        monkeypatch.setattr(decide, "load_engine", load)

    fail(JevifyError("no \x1b[31mnet\nwork"))
    assert run(capsys, "--context", "x") == (1, None, "jevify: no \\x1b[31mnet\njevify: work\n")
    fail(KeyboardInterrupt())
    assert run(capsys, "--context", "x") == (130, None, "")


def test_names_are_checked_and_progress_shown_before_torch(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(catalog, "installed", lambda name, **options: None)
    monkeypatch.setattr(catalog, "pull", lambda name, **options: asked.append((name, options)))
    loading.fetch("owner/model", "v1", True)
    assert asked == [("owner/model", {"revision": "v1", "local_files_only": True})]
    (tmp_path / "config.json").write_text("{}")
    loading.fetch(str(tmp_path), None, False)
    assert len(asked) == 1


def child(folder, *words, locale="C", **options):
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**environment, "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, FAKE, *words], cwd=folder, env=environment, **options)


def test_output_is_utf8_in_the_c_locale(decider, tmp_path):
    process = child(tmp_path, "--context-file", "text.txt", stdout=subprocess.PIPE)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert "café" in out.decode("utf-8")
    assert "Grüße" in out.decode("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently")
@pytest.mark.parametrize(
    "words",
    [["--context", "x"], ["--help"], ["schema", "workflow"]],
)
def test_a_broken_pipe_is_quiet(decider, tmp_path, words):
    read, write = os.pipe()
    os.close(read)
    process = child(tmp_path, *words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("line", ["--context x", "schema workflow", "models list", "--help", "--version"])
def test_a_full_disk_behind_stdout_is_told(decider, tmp_path, line):
    with open("/dev/full", "wb") as full:
        process = child(tmp_path, *line.split(), stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == b"jevify: the result cannot be written to standard output: No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="shells close streams differently")
@pytest.mark.parametrize(
    "line", ["--context x", "--interactive", "--help", "--version", "schema workflow", "models list", "bench --list"]
)
def test_a_closed_stdout_is_told_before_anything_loads(decider, tmp_path, line):
    process = child(tmp_path, *line.split(), stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == b"jevify: standard output is closed: there is nowhere to print the result\n"


@pytest.mark.skipif(sys.platform == "win32", reason="shells close streams differently")
def test_a_closed_stderr_leaves_stdout_to_the_result(decider, tmp_path):
    process = child(tmp_path, "--context", "x", "--warmup", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    out, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["model"] == "fake"
    process = child(tmp_path, "--context", "refuse", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    assert process.communicate()[0] == b""
    assert process.returncode == 2


def test_an_interrupt_during_the_imports_is_quiet(tmp_path):
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == {name!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from jevify.cli.main import main\n"
        "sys.exit(main(['--context', 'x']))\n"
    )
    for name in ("rich", "pydantic", "platformdirs", "jevify.cli.output", "jevify.cli.decide"):
        done = subprocess.run([sys.executable, "-c", code.format(name=name)], capture_output=True, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b""), name


def test_an_interrupt_that_an_import_would_swallow_comes_after_it():
    steps = []

    def imports():
        with loading.holding_interrupts():
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                steps.append("swallowed")
            steps.append("imported")

    with pytest.raises(KeyboardInterrupt):
        imports()
    assert steps == ["imported"]
    with loading.holding_interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("columns", ["0", "-3", "²", "99999999999"])
def test_a_width_that_is_none_is_not_believed(decider, tmp_path, columns):
    from terminal import Terminal

    with Terminal(FAKE, "--context", "x", cwd=tmp_path, environment={"COLUMNS": columns}) as session:
        assert session.finish() == 0
    # Label, bar and percentage beside each other on the 100 columns that the terminal has.
    assert re.search(r"billing +█+. +10\.0 %", session.shown), session.shown


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_gets_the_human_form_and_the_file_gets_json(decider, tmp_path):
    from terminal import Terminal

    labels = {"department": "billing", "angry": "yes"}
    save(tmp_path / "input.json", {"context": "x", "questions": QUESTIONS, "expected_labels": labels})
    with Terminal(FAKE, "--input", "input.json", "--output", "o.json", cwd=tmp_path) as session:
        assert session.finish() == 0
    assert "department  café  confidence 0.55  ✗ expected billing" in session.shown
    assert "angry  yes  probability of yes 0.750  ✓ as expected" in session.shown
    assert "1 of 2 answers as expected" in session.shown
    assert "{" not in session.shown
    assert json.loads((tmp_path / "o.json").read_bytes())["matched"] == 1
    with Terminal(FAKE, "--context", "x", "--json", cwd=tmp_path) as session:
        assert session.finish() == 0
    assert json.loads(session.shown)["model"] == "fake"


@pytest.mark.skipif(catalog.installed(catalog.DEFAULT_MODEL) is None, reason="run: jevify models pull smollm2-135m")
def test_the_embedded_model_answers_in_silence(tmp_path):
    """The shipped workflow on the shipped complaint, as the README shows it."""
    done = subprocess.run(
        [sys.executable, "-m", "jevify", "--context-file", "examples/complaint.txt", "--local-files-only"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert list(result["answers"]) == ["department", "refund_requested", "human_requested", "severity"]
    for answer in result["answers"].values():
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-9)
    assert result["metadata"]["generated_tokens"] == 0


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_fetched(monkeypatch):
    from jevify.cli import loading

    monkeypatch.setattr(loading, "fetch", lambda *_: pytest.fail("something was fetched"))
    with pytest.raises(InputError, match=r"sees no CUDA device|there are"):
        loading.load_engine("owner/model", device="cuda:99")
