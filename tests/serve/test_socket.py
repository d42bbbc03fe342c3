"""Servers on a socket, and clients that misbehave."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import tiny
from jevify.serve import protocol
from serving import STATE, Wrapped, as_json, body, exchange, post, server_of, until

pytestmark = pytest.mark.cpu

ASK = "/v1/systemone"
ROOT = Path(__file__).parents[2]


def status(reply):
    return int(reply.split(b" ", 2)[1])


@pytest.fixture(scope="module")
def url():
    with server_of() as (address, _):
        yield address


def test_garbage_gets_a_400_with_an_id(url):
    for garbage in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"HELLO WORLD\r\n\r\n"):
        reply = exchange(url, garbage)
        assert status(reply) == 400
        assert b"x-typesafe-request-id: req_" in reply
    assert httpx.get(f"{url}/health/ready").status_code == 200


def test_a_large_request_head_is_431(url):
    head = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
    assert status(exchange(url, head + b"x: " + b"y" * 100_000)) == 431
    many = b"".join(b"x%d: y\r\n" % n for n in range(20_000))
    assert status(exchange(url, head + many)) == 431


def test_a_slow_request_head_is_408(url, monkeypatch):
    monkeypatch.setattr(protocol.GuardedProtocol, "head_seconds", 0.3)
    begun = time.monotonic()
    reply = exchange(url, b"GET /health/live HTTP/1.1\r\n", b"host: localhost\r\n", b"x: y\r\n", pause=0.05)
    assert status(reply) == 408
    assert time.monotonic() - begun < 5
    assert status(exchange(url)) == 408  # A client that says nothing at all.


def test_a_head_in_pieces_and_requests_one_after_another_are_fine(url):
    content = as_json(body())
    request = post(ASK, content)
    pieces = [request[start : start + 40] for start in range(0, len(request), 40)]
    assert status(exchange(url, *pieces, pause=0.002)) == 200
    with httpx.Client() as client:
        for _ in range(3):
            assert client.post(url + ASK, json=body()).status_code == 200


def test_a_client_that_leaves_is_dropped_before_it_runs():
    gate = threading.Event()
    engine = Wrapped(before=lambda requests: gate.wait(20))
    with server_of(engine) as (url, service), ThreadPoolExecutor(4) as pool:
        first = pool.submit(httpx.post, url + ASK, json=body(), timeout=20)
        until(lambda: engine.batches == [1])
        stays = pool.submit(httpx.post, url + ASK, json=body("one that stays"), timeout=20)
        room = service._batcher.room
        until(lambda: room.requests == 1)
        host, port = url.removeprefix("http://").split(":")
        leaving = socket.create_connection((host, int(port)))
        leaving.sendall(post(ASK, as_json(body("one that leaves"))))
        until(lambda: room.requests == 2)
        leaving.close()
        until(lambda: room.requests == 1)
        gate.set()
        assert first.result().status_code == stays.result().status_code == 200
        assert engine.batches == [1, 1]
        assert httpx.get(f"{url}/health/ready").status_code == 200


def test_a_client_that_leaves_while_it_runs_touches_nobody():
    gate = threading.Event()
    engine = Wrapped(before=lambda requests: gate.wait(20))
    with server_of(engine) as (url, service), ThreadPoolExecutor(4) as pool:
        alone = None
        host, port = url.removeprefix("http://").split(":")
        leaving = socket.create_connection((host, int(port)))
        leaving.sendall(post(ASK, as_json(body("one that leaves"))))
        until(lambda: engine.batches == [1])
        others = [pool.submit(httpx.post, url + ASK, json=body(), timeout=20) for _ in range(3)]
        until(lambda: service._batcher.room.requests == 3)
        leaving.close()
        gate.set()
        replies = [other.result() for other in others]
        assert [reply.status_code for reply in replies] == [200] * 3
        alone = httpx.post(url + ASK, json=body()).json()["answers"]["late"]["noul"]
        assert [reply.json()["answers"]["late"]["noul"] for reply in replies] == [pytest.approx(alone, abs=1e-5)] * 3


def test_a_body_that_never_ends_is_told_and_lets_the_others_through():
    with server_of(body_ms=300) as (url, _), ThreadPoolExecutor(2) as pool:
        content = as_json(body())
        slow = pool.submit(exchange, url, post(ASK, content)[:-20])
        assert httpx.post(url + ASK, json=body()).status_code == 200
        assert status(slow.result()) == 408


def test_over_the_limit_of_connections_requests_are_refused():
    with server_of(connections=1) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        assert httpx.post(url + ASK, json=body()).status_code == 200
        with socket.create_connection((host, int(port))):
            reply = httpx.post(url + ASK, json=body())
            assert (reply.status_code, reply.json()["detail"]) == (503, "too many connections are open")
            assert reply.headers["x-typesafe-request-id"].startswith("req_")
            assert httpx.get(f"{url}/health/ready").status_code == 200


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny.model("qwen2").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def started(checkpoint, *flags, ready=True):
    """The server as a process, and its address once it is ready, or listens."""
    command = [sys.executable, "-m", "jevify", "serve", "--model", str(checkpoint), "--device", "cpu", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(checkpoint.parent / "cache")}
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True, env=environment)
    url = json.loads(process.stderr.readline())["url"]
    until(lambda: httpx.get(f"{url}/health/ready").status_code == 200 or not ready, seconds=60)
    return process, url


def finished(process):
    """Exit code and the log's lines."""
    _, log = process.communicate(timeout=30)
    return process.returncode, [json.loads(line) for line in log.splitlines()]


def test_sigterm_under_load_answers_what_was_accepted_and_exits_with_0(checkpoint):
    process, url = started(checkpoint, "--drain-ms", "300")
    stop, found = threading.Event(), []

    def ask(n):
        with httpx.Client(timeout=20) as client:
            while not stop.is_set():
                levels = [f"marker {n}", "other"]
                questions = {"q": {"type": "score", "instructions": "How?", "criteria": levels}}
                try:
                    reply = client.post(url + ASK, json=body(questions=questions))
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    return  # The port is closed, or was while the request was on its way: it was not accepted.
                found.append((reply.status_code, reply.status_code != 200 or levels[0] in reply.text))
                if reply.status_code == 503:
                    return

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    try:
        for thread in threads:
            thread.start()
        until(lambda: sum(one == 200 for one, _ in found) > 20, seconds=60)
        process.send_signal(signal.SIGTERM)
        code, lines = finished(process)
    finally:
        stop.set()
        process.kill()
        for thread in threads:
            thread.join(20)
    assert code == 0
    # On a slow machine the eight may be more than can be answered in time.
    assert {200, 503} <= {one for one, _ in found} <= {200, 429, 503}
    assert all(own for _, own in found)
    events = [line["event"] for line in lines if line["event"] != "request"]
    assert events[-2:] == ["draining", "stopped"]
    # What was accepted has its answer: the log knows of no reply that did not arrive.
    logged = [line["status"] for line in lines if line["event"] == "request"]
    assert sorted(logged) == sorted(one for one, _ in found)


def test_sigterm_finishes_a_request_that_waits(checkpoint):
    process, url = started(checkpoint, "--drain-ms", "0", "--max-question-tokens", "4096")
    with ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(httpx.post, url + ASK, json=body(STATE * 60), timeout=30) for _ in range(8)]
        until(lambda: "jevify_queue_requests 0.0" not in httpx.get(f"{url}/metrics").text or replies[0].done())
        process.send_signal(signal.SIGTERM)
        code, lines = finished(process)
        assert code == 0
        # A request that had not arrived was not accepted: its connection is closed.
        statuses = [reply.result().status_code for reply in replies if reply.exception() is None]
        assert 200 in statuses
        assert set(statuses) <= {200, 429, 503}
        assert sorted(statuses) == sorted(line["status"] for line in lines if line["event"] == "request")


def test_sigterm_while_the_model_loads(checkpoint):
    process, _ = started(checkpoint, "--drain-ms", "0", ready=False)
    process.send_signal(signal.SIGTERM)
    code, lines = finished(process)
    assert code == 0
    assert lines[-1]["event"] == "stopped"


def test_a_model_that_cannot_load_ends_the_server(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    command = [sys.executable, "-m", "jevify", "serve", "--model", str(tmp_path), "--device", "cpu", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2
    assert re.search("model type is 'gpt2'", done.stderr)
