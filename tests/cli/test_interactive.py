"""The conversation: through a real pseudo-terminal, and through a pipe."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fake_decider
from jevify.cli.interactive import interact
from jevify.decide.workflow import Workflow

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals"),
]

ONE = {"angry": {"type": "noul", "instructions": "Is the customer angry?"}}
TWO = {"bare": {"type": "choice", "criteria": ["a", "b", "c"]}, **ONE}
FAKE = fake_decider.__file__


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "workflow.json").write_text(json.dumps({"questions": ONE}), "utf-8")
    (tmp_path / "two.json").write_text(json.dumps({"questions": TWO}), "utf-8")
    return tmp_path


@pytest.fixture
def terminal(folder):
    from terminal import Terminal

    opened = []

    def start(*words, **options):
        opened.append(Terminal(FAKE, *words, cwd=folder, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def test_a_conversation(terminal):
    session = terminal("--interactive")
    session.wait_for("> ")
    assert session.shown.index("[warm]") < session.shown.index("Paste a text")
    session.type("My parcel is late.\nI am [red]angry[/red].\n/run\n")
    session.wait_for("angry [Is the customer angry?]: ")
    session.type("\n")
    session.wait_for("> ", times=2)
    assert "fake  forked · float32 · cpu" in session.shown
    assert "angry  yes  probability of yes 0.750" in session.shown
    assert "█" in session.shown
    session.type("/quit\n")
    assert session.finish() == 0
    assert "Traceback" not in session.shown


def test_no_warm_up_when_told_so(terminal):
    session = terminal("--interactive", "--no-warmup")
    session.wait_for("> ")
    session.type("\x04")
    assert session.finish() == 0
    assert "[warm]" not in session.shown


def test_an_empty_text_is_asked_for_again_and_errors_do_not_end_it(terminal):
    session = terminal("--interactive", "--no-warmup", "--json")
    session.wait_for("> ")
    session.type("/run\n")
    session.wait_for("there is no text yet")
    session.wait_for("> ", times=2)
    for number, (text, said) in enumerate(
        [("refuse", "jevify: too long: shorten it"), ("break", "jevify: RuntimeError: out of luck")], start=3
    ):
        session.type(f"{text}\n/run\n")
        session.wait_for("angry?]: ", times=number - 2)
        session.type("\n")
        session.wait_for(said)
        session.wait_for("> ", times=number)
    session.type("fine\n/run\n")
    session.wait_for("angry?]: ", times=3)
    session.type("\n")
    session.wait_for('"context": "fine"')
    session.type("/quit\n")
    assert session.finish() == 0


def test_a_question_without_a_prompt_insists(terminal):
    session = terminal("--interactive", "--workflow", "two.json")
    session.wait_for("> ")
    session.type("text\n/run\n")
    session.wait_for("bare: ")
    session.type("\n")
    session.wait_for("question bare has nothing saved")
    session.wait_for("bare: ", times=2)
    session.type("Which letter?\n")
    session.wait_for("angry [Is the customer angry?]: ")
    session.type("/quit\n")
    assert session.finish() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cut at other lengths")
def test_a_line_that_the_terminal_may_have_cut_is_refused(terminal):
    session = terminal("--interactive", "--json")
    session.wait_for("> ")
    session.type("x" * 4094 + "\n")
    session.wait_for("x" * 4094)
    session.type("/run\n")
    session.wait_for("angry?]: ")
    session.type("\n")
    session.wait_for(json.dumps("x" * 4094))
    session.type("y" * 4200 + "\n")
    session.wait_for("y" * 4090)
    session.type("/run\n")
    session.wait_for("line 1 of the text: a line has reached the 4,095 bytes")
    session.type("/quit\n")
    assert session.finish() == 0
    assert "yyyy" not in session.shown.split("4,095 bytes")[1]


def test_ctrl_c_leaves_quietly(terminal):
    session = terminal("--interactive")
    session.wait_for("> ")
    session.type("some text\n\x03")
    assert session.finish() == 130
    assert "Traceback" not in session.shown


def test_results_alone_go_to_a_redirected_stdout(terminal, folder):
    out = folder / "out.json"
    with out.open("wb") as file:
        session = terminal("--interactive", stdout=file.fileno())
    session.wait_for("> ")
    session.type("text\n/run\n")
    session.wait_for("angry?]: ")
    session.type("\n")
    session.wait_for("> ", times=2)
    session.type("/quit\n")
    assert session.finish() == 0
    assert json.loads(out.read_text("utf-8"))["answers"]["angry"]["noul"] == 0.75


def test_a_pipe_works_as_well(folder):
    words = "erster Text, größer\n/run\n\n/run \n/quit now\n second\n/run\nIs it urgent?\n/quit\n"
    done = subprocess.run(
        [sys.executable, FAKE, "--interactive", "--no-warmup"],
        input=words.encode(),
        capture_output=True,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(_path())},
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    results = _objects(done.stdout.decode("utf-8"))
    assert [result["metadata"]["context"] for result in results] == [
        "erster Text, größer",
        "/run \n/quit now\n second",
    ]
    # The second prompt is for its own request only, and the saved one came back.
    assert [result["metadata"]["asked"]["angry"] for result in results] == [
        "Is the customer angry?",
        "Is it urgent?",
    ]


class Talk:
    """`interact` on bytes instead of a process."""

    def __init__(self, questions=ONE):
        self.workflow = Workflow.parse({"questions": questions})
        self.decider = fake_decider.FakeDecider()
        self.given = []

    def __call__(self, words):
        return interact(self.decider.decide, self.workflow, self.given.append, io.BytesIO(words))

    @property
    def contexts(self):
        return [entry[0] for entry in self.decider.log]


def test_prompts_typed_last_for_one_request():
    talk = Talk(TWO)
    assert talk(b"one\n/run\nWhich?\nIs it?\ntwo\n/run\n\n \nAgain?\n\n") == 0
    asked = [result["metadata"]["asked"] for result in talk.given]
    assert asked == [
        {"bare": "Which?", "angry": "Is it?"},
        {"bare": "Again?", "angry": "Is the customer angry?"},
    ]
    assert talk.contexts == ["one", "two"]


def test_described_options_need_no_prompt():
    talk = Talk({"q": {"type": "score", "criteria": ["low", "middle", "high"]}})
    assert talk(b"text\n/run\n\n") == 0
    assert talk.given[0]["metadata"]["asked"] == {"q": None}


def test_windows_line_ends_and_inner_blank_lines():
    talk = Talk()
    assert talk(b"one\r\n\r\ntwo\r\n/run\r\n\r\n/quit\r\n") == 0
    assert talk.contexts == ["one\n\ntwo"]


def test_a_line_that_is_not_utf8_refuses_its_request_alone(capsys):
    talk = Talk()
    assert talk(b"good\nb\xffd\n/run\nprompt of the bad one\nnext\n/run\n\n") == 2
    assert talk.contexts == ["next"]
    assert "line 2 of the text: a line is not UTF-8 text (byte 1 of it" in capsys.readouterr().err


def test_a_prompt_that_is_not_utf8_refuses_its_request_alone(capsys):
    talk = Talk(TWO)
    assert talk(b"first\n/run\n\xff?\nfine?\nnext\n/run\nWhich?\n\n") == 2
    assert talk.contexts == ["next"]
    assert "the prompt of bare: a line is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("words", [b"text\n", b"text\n/run\n"])
def test_a_text_without_its_end_is_told(words, capsys):
    talk = Talk()
    assert talk(words) == 2
    assert talk.contexts == []
    assert "the last text was not decided" in capsys.readouterr().err


def test_a_pipe_ends_with_the_code_of_its_failure(capsys):
    assert Talk()(b"refuse\n/run\n\nfine\n/run\n\n") == 2
    assert Talk()(b"break\n/run\n\n/quit\n") == 1
    assert Talk()(b"/quit\n") == 0
    assert Talk()(b"\n \n") == 0


def _path():
    tests = Path(FAKE).parent
    return [str(tests.parent / "src"), str(tests)]


def _objects(text):
    decoder = json.JSONDecoder()
    found = []
    while text.strip():
        value, end = decoder.raw_decode(text.lstrip())
        found.append(value)
        text = text.lstrip()[end:]
    return found
