"""Put a server on loopback under load and store what came of it.

    python scripts/load_test.py OUT.json [--seconds 10] [--clients 1 8 64] [--overload 10] [--words N]
        [--tolerance X] [-- FLAGS OF jevify serve]

Starts `jevify serve` on a free port, asks as many clients as said, each after its last answer (closed loop), then sends
at a multiple of the capacity that was measured, whoever waits (open loop), and stops the server with SIGTERM. Every
request carries a marker that its answer must show, and its answer must be the one that the same request got alone. Then
the same requests go through `decide_many` of an engine in this process, without HTTP. No other machine is asked.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from jevify.evidence.environment import environment
from jevify.evidence.store import write_json
from jevify.evidence.words import WORDS

MARKERS = 16
MOST_CONNECTIONS = 512
WORKFLOW = Path(__file__).parents[1] / "workflow.json"


class Connection:
    """HTTP/1.1 over one kept connection, with as little work as can be: the clients share the server's processors."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, content: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the reply to `content` at /v1/systemone."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(
            b"POST /v1/systemone HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(content) + content
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(head[0].split(" ")[1]), headers, body

    def close(self) -> None:
        """Leave."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Requests:
    """A set of requests of one size whose answers are known, so that a mixed-up one shows."""

    def __init__(self, count: int, size: int, tolerance: float) -> None:
        rubric = json.loads(WORKFLOW.read_text("utf-8"))["questions"]
        source = random.Random(5)
        self.texts = [" ".join(source.choices(WORDS, k=size)) for _ in range(count)]
        self.rubrics = []
        for marker in range(MARKERS):
            levels = [f"marker {marker}", *rubric["severity"]["criteria"]]
            self.rubrics.append({**rubric, "severity": {**rubric["severity"], "criteria": levels}})
        self.bodies = [
            json.dumps({"state": text, "model": "jev-latest", "questions": self.rubrics[index % MARKERS]}).encode()
            for index, text in enumerate(self.texts)
        ]
        self.known: list[list[float]] = []
        self._tolerance = tolerance

    def wrong(self, index: int, body: bytes) -> bool:
        """Whether `body` is not the answer to request `index`."""
        answers = json.loads(body)["answers"]
        if answers["severity"]["legend"]["0"] != f"marker {index % MARKERS}":
            return True
        found = numbers(answers)
        return any(abs(a - b) > self._tolerance for a, b in zip(found, self.known[index], strict=True))

    def distance(self) -> float:
        """The least difference between the answers of two requests with one marker: above the tolerance, all tell."""
        return min(
            max(abs(a - b) for a, b in zip(one, other, strict=True))
            for index, one in enumerate(self.known)
            for other in self.known[index + MARKERS :: MARKERS]
        )


def numbers(answers: dict[str, Any]) -> list[float]:
    """The probabilities of all answers in order."""
    return [
        share for answer in answers.values() for share in answer.get("probabilities", {"": answer.get("noul")}).values()
    ]


class Tally:
    """What came back."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.slowest_refusal = 0.0
        self.wrong = self.without_time = 0

    def note(self, requests: Requests, index: int, reply: tuple[int, dict[str, str], bytes], seconds: float) -> None:
        """Take in one reply."""
        status, headers, body = reply
        self.statuses[str(status)] += 1
        if status == 200:
            self.seconds.append(seconds)
            self.wrong += requests.wrong(index, body)
        else:
            self.slowest_refusal = max(self.slowest_refusal, seconds)
            self.without_time += "retry-after-ms" not in headers

    def summary(self, wall: float) -> dict[str, Any]:
        """As stored."""
        milliseconds = sorted(second * 1e3 for second in self.seconds) or [0.0]
        return {
            "seconds": wall,
            "answers_per_second": len(self.seconds) / wall,
            "p50_ms": statistics.median(milliseconds),
            "p99_ms": milliseconds[min(len(milliseconds) - 1, int(len(milliseconds) * 0.99))],
            "slowest_answer_ms": milliseconds[-1],
            "slowest_refusal_ms": self.slowest_refusal * 1e3,
            "statuses": dict(self.statuses),
            "wrong_answers": self.wrong,
            "refusals_without_retry_after_ms": self.without_time,
        }


async def closed_loop(port: int, requests: Requests, clients: int, seconds: float) -> Tally:
    """Each client asks after its last answer, and when told to come again, then."""
    tally, end = Tally(), time.monotonic() + seconds

    async def client(start: int) -> None:
        connection, index = Connection(port), start
        while time.monotonic() < end:
            index = (index + clients) % len(requests.bodies)
            begun = time.monotonic()
            reply = await connection.post(requests.bodies[index])
            tally.note(requests, index, reply, time.monotonic() - begun)
            if reply[0] != 200:
                wait = float(reply[1].get("retry-after-ms", 0)) / 1e3
                await asyncio.sleep(max(0.0, min(wait, end - time.monotonic())))
        connection.close()

    await asyncio.gather(*(client(start) for start in range(clients)))
    return tally


async def open_loop(port: int, requests: Requests, rate: float, seconds: float) -> tuple[Tally, int]:
    """Requests at a fixed rate; also how many could not be sent, since all connections waited."""
    tally, free, unsent, made, running = Tally(), [], 0, 0, set()
    begun = time.monotonic()

    async def one(connection: Connection, index: int) -> None:
        start = time.monotonic()
        reply = await connection.post(requests.bodies[index])
        tally.note(requests, index, reply, time.monotonic() - start)
        free.append(connection)

    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
        if free:
            connection = free.pop()
        elif made < MOST_CONNECTIONS:
            connection, made = Connection(port), made + 1
        else:
            unsent += 1
            continue
        task = asyncio.create_task(one(connection, number % len(requests.bodies)))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    for connection in free:
        connection.close()
    return tally, unsent


class Server:
    """`jevify serve` as a process of its own."""

    def __init__(self, flags: list[str]) -> None:
        command = [sys.executable, "-m", "jevify", "serve", "--port", "0", *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.port = int(json.loads(self._process.stderr.readline())["url"].rpartition(":")[2])
        self.events: Counter[str] = Counter()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        begun = time.monotonic()
        while self.ready() != 200:
            if self._process.poll() is not None:
                raise SystemExit(f"the server ended with {self._process.returncode}")
            time.sleep(0.1)
        self.ready_after = time.monotonic() - begun

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with contextlib.suppress(ValueError, KeyError):
                self.events[json.loads(line)["event"]] += 1

    def ready(self) -> int:
        """The status of /health/ready, 0 for none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return {name: float(value) for name, _, value in (one.rpartition(" ") for one in lines if one[0] != "#")}

    def usage(self) -> dict[str, float]:
        """Resident MiB and processor seconds so far; nothing where /proc is not there."""
        folder = Path(f"/proc/{self._process.pid}")
        if not folder.exists():
            return {}
        pages = int((folder / "statm").read_text().split()[1])
        ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        return {
            "resident_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "processor_seconds": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
        }

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        self._reader.join(10)
        return code


async def phase(server: Server, work: Any) -> dict[str, Any]:
    """`await work`, and what the server did meanwhile."""
    before, used, states, done = server.metrics(), server.usage(), Counter[str](), asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            states[str(await asyncio.to_thread(server.ready))] += 1
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    begun = time.monotonic()
    found = await work
    wall = time.monotonic() - begun
    done.set()
    await watching
    after, then = server.metrics(), server.usage()
    tally, unsent = found if isinstance(found, tuple) else (found, 0)
    batches = after["jevify_batch_requests_count"] - before.get("jevify_batch_requests_count", 0)
    told = {name: after[f"jevify_{name}"] - before[f"jevify_{name}"] for name in _SUMS}
    return {
        **tally.summary(wall),
        "not_sent": unsent,
        "ready": dict(states),
        "batches": batches,
        "mean_batch": told["batch_requests_sum"] / max(batches, 1),
        "tokens_per_second": told["batch_tokens_sum"] / wall,
        "engine_busy_share": told["batch_seconds_sum"] / wall,
        "processor_seconds": then.get("processor_seconds", 0) - used.get("processor_seconds", 0),
        "resident_mib": {"before": used.get("resident_mib"), "after": then.get("resident_mib")},
    }


_SUMS = ("batch_requests_sum", "batch_tokens_sum", "batch_seconds_sum")


async def measure(server: Server, requests: Requests, args: argparse.Namespace) -> dict[str, Any]:
    """All phases by name."""
    connection = Connection(server.port)
    for body in requests.bodies:
        status, _, reply = await connection.post(body)
        if status != 200:
            raise SystemExit(f"the server answered {status}: {reply.decode()}")
        requests.known.append(numbers(json.loads(reply)["answers"]))
    connection.close()
    found = {}
    for clients in args.clients:
        name = f"closed loop, {clients} clients"
        found[name] = await phase(server, closed_loop(server.port, requests, clients, args.seconds))
        print(name, json.dumps(found[name]), flush=True)
    capacity = max(one["answers_per_second"] for one in found.values())
    name = f"open loop, {args.overload:g} x capacity"
    work = open_loop(server.port, requests, capacity * args.overload, args.seconds)
    found[name] = {"offered_per_second": capacity * args.overload, **await phase(server, work)}
    print(name, json.dumps(found[name]), flush=True)
    return found


def engine_alone(requests: Requests, flags: list[str], seconds: float, together: int) -> dict[str, Any]:
    """Requests a second of `decide_many` of `together`, and the median milliseconds of a lone `decide`, same flags."""
    from jevify.cli.arguments import Parser
    from jevify.cli.decide import settings_of
    from jevify.cli.serve import add_parser
    from jevify.engine import DecisionEngine

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(dest="command", parser_class=Parser))
    args = parser.parse_args(["serve", *flags])
    if args.executor is None:
        args.executor = "packed"
    engine = DecisionEngine.from_pretrained(args.model, device=args.device, dtype=args.dtype, **settings_of(args))
    asked = [(text, requests.rubrics[index % MARKERS]) for index, text in enumerate(requests.texts)]
    batch = [asked[index % len(asked)] for index in range(together)]
    engine.decide_many(batch)
    rounds, begun = 0, time.monotonic()
    while rounds == 0 or time.monotonic() - begun < seconds:
        engine.decide_many(batch)
        rounds += 1
    rate = rounds * len(batch) / (time.monotonic() - begun)
    alone: list[float] = []
    end = time.monotonic() + seconds
    while not alone or time.monotonic() < end:
        start = time.monotonic()
        engine.decide(*asked[len(alone) % len(asked)])
        alone.append((time.monotonic() - start) * 1e3)
    return {"together": together, "decide_many_per_second": rate, "decide_p50_ms": statistics.median(alone)}


def main() -> int:
    """Run and store; 1 when an answer was lost or wrong, or the server did not stop well."""
    words_given = sys.argv[1:]
    cut = words_given.index("--") if "--" in words_given else len(words_given)
    parser = argparse.ArgumentParser(description="Put a server on loopback under load and store what came of it.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--overload", type=float, default=10.0, help="times the capacity, in the open loop")
    parser.add_argument("--words", type=int, default=120, help="of each text")
    parser.add_argument("--texts", type=int, default=64, help="different texts")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of a probability, between alone and together")
    parser.add_argument("--note", default="", help="what a reader should know about the machine")
    args = parser.parse_args(words_given[:cut])
    args.flags = words_given[cut + 1 :]
    requests = Requests(args.texts, args.words, args.tolerance)
    server = Server(args.flags)
    try:
        phases = asyncio.run(measure(server, requests, args))
    finally:
        code = server.stop()
    result = {
        "environment": environment(" ".join(sys.argv)),
        "note": args.note,
        "ready_after_seconds": server.ready_after,
        "least_distance_between_answers": requests.distance(),
        "tolerance": args.tolerance,
        "phases": phases,
        "exit_code": code,
        "log_lines": dict(server.events),
        "engine_alone": engine_alone(requests, args.flags, args.seconds, max(args.clients)),
    }
    write_json(args.output, result)
    print("engine alone", json.dumps(result["engine_alone"]))
    bad = sum(one["wrong_answers"] + one["refusals_without_retry_after_ms"] for one in phases.values())
    strange = {status for one in phases.values() for status in one["statuses"]} - {"200", "429", "503"}
    return int(bool(bad or strange or code))


if __name__ == "__main__":
    sys.exit(main())
