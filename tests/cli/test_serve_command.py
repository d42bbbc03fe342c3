"""`jevify serve`: what is refused before anything loads or listens."""

import json
import socket
import sys

import pytest

from jevify.cli import serve
from jevify.cli.main import main
from jevify.decide.workflow import Workflow

pytestmark = pytest.mark.cpu

QUESTIONS = {"late": {"type": "noul", "instructions": "Is it late?"}}


@pytest.fixture
def ran(monkeypatch):
    """What would have been served, call by call."""
    from jevify.serve import server

    calls = []
    monkeypatch.setattr(server, "serve", lambda load, **options: calls.append((load, options)))
    return calls


def refused(capsys, *words):
    assert main(["serve", *words]) == 2
    return capsys.readouterr().err


def save(path, questions):
    path.write_text(json.dumps({"questions": questions}))
    return str(path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_beyond_loopback_a_key_is_needed(ran, capsys, host):
    assert "give --api-key-file" in refused(capsys, "--host", host)
    assert main(["serve", "--host", host, "--api-key", "k"]) == 0
    assert [options["host"] for _, options in ran] == [host]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_none(ran, host):
    assert main(["serve", "--host", host]) == 0
    assert ran[0][1]["port"] == 8600


def test_keys_come_from_a_file(ran, capsys, tmp_path):
    file = tmp_path / "keys"
    file.write_text("first\n\n  second \n")
    assert main(["serve", "--host", "0.0.0.0", "--api-key-file", str(file)]) == 0
    assert len(ran[0][1]["access"]._digests) == 2
    file.write_text("\n")
    assert "holds no key" in refused(capsys, "--api-key-file", str(file))
    assert "without spaces" in refused(capsys, "--api-key", "a b")
    assert "not allowed with" in refused(capsys, "--api-key", "a", "--api-key-file", str(file))


def test_batches_need_the_packed_executor_so_it_is_the_default(ran, monkeypatch):
    loads = []
    monkeypatch.setattr(serve, "load_engine", lambda model, **options: loads.append((model, options)) or Warm())

    class Warm:
        def warmup(self, questions):
            loads.append(questions)

    assert main(["serve", "--model", "m", "--token-budget", "512", "--stable", "--max-questions", "40"]) == 0
    assert main(["serve", "--executor", "forked", "--branch-batch-size", "4", "--no-warmup"]) == 0
    assert main(["serve", "--mode", "independent"]) == 0
    for load, _ in ran:
        load()
    assert loads[0][0] == "m"
    wanted = {"executor": "packed", "token_budget": 512, "stable": True, "max_questions": 40}
    assert wanted.items() <= loads[0][1].items()
    assert loads[1] is None
    assert loads[2][1]["executor"] == "forked"
    assert loads[3][1]["executor"] == "independent"
    assert ran[0][1]["limits"].batch_tokens == 512
    assert ran[1][1]["limits"].batch_tokens == 8192


def test_limits_are_flags(ran, capsys):
    flags = "--body-bytes 2048 --queue-requests 7 --deadline-ms 500 --drain-ms 0"
    assert main(["serve", *flags.split()]) == 0
    limits = ran[0][1]["limits"]
    assert (limits.body_bytes, limits.queue_requests, limits.deadline_ms, limits.drain_ms) == (2048, 7, 500, 0)
    assert "--queue-requests is 0; use a whole number from 1" in refused(capsys, "--queue-requests", "0")
    assert "--port is 70000" in refused(capsys, "--port", "70000")
    assert "--branch-batch-size 4 has no effect on the packed" in refused(capsys, "--branch-batch-size", "4")
    assert "not in this version" in refused(capsys, "--adapter", ".")


def test_workflows_are_named_by_their_files(ran, tmp_path):
    folder = tmp_path / "rubrics"
    folder.mkdir()
    save(folder / "b.json", QUESTIONS)
    save(folder / "a.json", QUESTIONS)
    (folder / "notes.txt").write_text("no workflow")
    single = save(tmp_path / "triage.json", QUESTIONS)
    assert main(["serve", "--workflow", str(folder), "--workflow", single]) == 0
    workflows = ran[0][1]["workflows"]
    assert list(workflows) == ["a", "b", "triage"]
    assert workflows["triage"] == Workflow(questions=QUESTIONS)


def test_bad_workflows_are_refused(capsys, tmp_path):
    good = save(tmp_path / "triage.json", QUESTIONS)
    assert "a workflow named triage already" in refused(capsys, "--workflow", good, "--workflow", good)
    bare = save(tmp_path / "bare.json", {"late": {"type": "noul"}})
    assert "question late has neither instructions nor" in refused(capsys, "--workflow", bare)
    many = save(tmp_path / "many.json", {f"q{n}": QUESTIONS["late"] for n in range(33)})
    assert "has 33 questions, and the limit is 32" in refused(capsys, "--workflow", many)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no .json file" in refused(capsys, "--workflow", str(empty))
    assert "cannot be read" in refused(capsys, "--workflow", str(tmp_path / "absent.json"))


def test_a_port_in_use_is_told(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}: cannot be listened on" in refused(capsys, "--port", str(port))


def test_without_the_extra_it_is_named(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("jevify.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.datastructures", None)
    assert "pip install 'jevify[serve]'" in refused(capsys)
