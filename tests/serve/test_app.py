"""The endpoints, in this process: replies, limits, logs, metrics."""

import asyncio
import json
import logging
import threading

import pytest
import zstandard

from jevify.serve import app
from jevify.serve.logs import JsonLines
from serving import KEY, QUESTIONS, STATE, Wrapped, body, client_of, tiny_engine, until_async

pytestmark = pytest.mark.cpu

ASK = "/v1/systemone"
JSON = {"content-type": "application/json"}


def served(work, engine=None, **options):
    """`await work(client)` against an app of its own."""

    async def main():
        async with client_of(engine, **options) as client:
            return await work(client)

    return asyncio.run(main())


def reply_to(method, path, engine=None, *, options=None, **request):
    async def work(client):
        return await client.request(method, path, **request)

    return served(work, engine, **(options or {}))


def test_the_answer_of_systemone_is_that_of_the_engine():
    reply = reply_to("POST", ASK, json=body())
    assert reply.status_code == 200
    wanted = tiny_engine().decide(STATE, QUESTIONS)["answers"]
    found = reply.json()
    assert list(found) == ["model", "answers", "usage"]
    assert list(found["answers"]["late"]) == ["type", "noul"]
    assert found["answers"]["late"]["noul"] == pytest.approx(wanted["late"]["noul"], abs=1e-5)
    assert found["answers"]["team"]["probabilities"] == pytest.approx(wanted["team"]["probabilities"], abs=1e-5)
    assert found["answers"]["mood"]["confidence"] == pytest.approx(wanted["mood"]["confidence"], abs=1e-5)
    assert found["usage"] == {"input_tokens": tiny_engine().prepare(STATE, QUESTIONS).plan.tokens, "output_tokens": 0}


def test_the_header_tells_the_stages():
    timing = json.loads(reply_to("POST", ASK, json=body()).headers["x-jevify-timing"])
    assert list(timing) == ["read", "prepare", "queue", "compute", "total"]
    assert sum(timing.values()) - timing["total"] <= timing["total"] + 0.01
    assert timing["compute"] > 0


def test_debug_shows_the_inside():
    found = reply_to("POST", f"{ASK}?debug=1", json=body()).json()["debug"]
    assert found["batch"] == 1
    assert found["metadata"]["executor"] == "packed"
    assert found["probability_status"] == "uncalibrated answer-token probabilities"
    prefix, *branches = [segment for segment in found["tree"] if segment["label"] in ("prefix", *QUESTIONS)]
    assert prefix == {"parent": None, "tokens": found["metadata"]["shared_prefix_tokens"], "label": "prefix"}
    assert [(one["label"], one["parent"]) for one in branches] == [("team", 0), ("late", 0), ("mood", 0)]
    assert "debug" not in reply_to("POST", f"{ASK}?debug=0", json=body()).json()
    assert reply_to("POST", f"{ASK}?debug=yes", json=body()).status_code == 422


def test_the_tree_of_label_paths():
    engine = tiny_engine().with_settings(answer_encoding="labels")
    questions = {"q": {"type": "choice", "instructions": "?", "criteria": ["organ", "organism failure", "no"]}}
    found = reply_to("POST", f"{ASK}?debug=1", engine, json=body(questions=questions)).json()
    tree = found["debug"]["tree"]
    assert tree[0] == {"parent": None, "tokens": found["debug"]["metadata"]["questions"]["q"]["tokens"], "label": "q"}
    assert {segment["parent"] for segment in tree[1:]} == {0}
    assert "organism failure" in [segment["label"] for segment in tree[1:]]
    assert sum(segment["tokens"] for segment in tree) == found["usage"]["input_tokens"]


def test_a_stored_workflow_is_asked_with_a_context_alone():
    async def work(client):
        stored = (await client.post("/v1/workflows/triage", json={"context": STATE})).json()
        asked = (await client.post(ASK, json=body())).json()
        assert stored["answers"]["late"]["noul"] == pytest.approx(asked["answers"]["late"]["noul"], abs=1e-5)
        assert stored["answers"]["mood"]["legend"] == {"0": "fine", "1": "bad", "2": "awful"}
        assert (await client.get("/v1/workflows")).json() == {"workflows": ["triage"]}
        shown = (await client.get("/v1/workflows/triage")).json()
        assert shown["questions"]["mood"]["criteria"] == ["fine", "bad", "awful"]
        for name in ("other", "triage/x"):
            assert (await client.post(f"/v1/workflows/{name}", json={"context": STATE})).status_code == 404
        extra = await client.post("/v1/workflows/triage", json={"context": STATE, "questions": QUESTIONS})
        assert extra.json()["detail"][0]["loc"] == ["body", "questions"]
        empty = await client.post("/v1/workflows/triage", json={"context": " "})
        assert empty.json()["detail"][0]["loc"] == ["body", "context"]

    served(work)


DEEP = b'{"state": ' + b"[" * 5_000 + b"]" * 5_000 + b', "model": "jev-latest", "questions": {}}'


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"", ["body"], "is empty"),
        (b"{", ["body"], "not valid JSON"),
        (b"[]", ["body"], "must be an object, not an array"),
        (b'"text"', ["body"], "must be an object, not a string"),
        (b"\xff\xfe", ["body"], "not UTF-8"),
        (b'{"state": NaN}', ["body", "state"], "NaN"),
        (b'{"state": 1e999}', ["body", "state"], "NaN or beyond"),
        (b'{"state": "\\ud800"}', ["body", "state"], "half of a surrogate pair"),
        (b'{"state": "a", "state": "b"}', ["body", "state"], "more than once"),
        (b'{"state": ' + b"9" * 5_000 + b"}", ["body"], "too many digits"),
        (DEEP, ["body"], "nested deeper than 100"),
        (DEEP.replace(b"[" * 5_000, b"[" * 200).replace(b"]" * 5_000, b"]" * 200), ["body", "state", 0], "deeper"),
        (b"{}", ["body", "state"], "is missing"),
        (b'{"state": "a", "model": "jev-latest"}', ["body", "questions"], "is missing"),
        (b'{"state": "a", "questions": {}}', ["body", "model"], "is missing"),
    ],
)
def test_malformed_bodies_are_told_with_their_place(content, place, message):
    reply = reply_to("POST", ASK, content=content, headers=JSON)
    assert reply.status_code == 422
    problem = reply.json()["detail"][0]
    assert problem["loc"] == place
    assert message in problem["msg"]
    assert problem["type"] == ("missing" if message == "is missing" else "value_error")


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"state": {}}, ["state"], "must not be empty"),
        ({"state": 7}, ["state"], "must be a string, an object or an array"),
        ({"model": 7}, ["model"], "must be a string"),
        ({"questions": []}, ["questions"], "must be an object, not an array"),
        ({"questions": {}}, ["questions"], "at least 1"),
        ({"questions": {"": {"type": "noul", "instructions": "?"}}}, ["questions", ""], "blank"),
        ({"questions": {"a": 7}}, ["questions", "a"], "must be an object"),
        ({"questions": {"a": {}}}, ["questions", "a", "type"], "is missing"),
        ({"questions": {"a": {"type": "noul"}}}, ["questions", "a", "instructions"], "say what is asked"),
        ({"questions": {"a": {"type": "noul", "criteria": {}}}}, ["questions", "a", "instructions"], "say what"),
        ({"questions": {"a": {"type": "score", "criteria": []}}}, ["questions", "a", "criteria"], "at least 1"),
        ({"questions": {"a": {"type": "score", "criteria": [None]}}}, ["questions", "a", "criteria", 0], "a string"),
        ({"questions": {"a": {"type": "choice"}}}, ["questions", "a", "criteria"], "is missing"),
        ({"questions": {"a": {"type": "choice", "criteria": {"x": 3}}}}, ["questions", "a", "criteria", "x"], "string"),
        ({"questions": {"a": {"type": "choice", "criteria": ["x"], "k": 1}}}, ["questions", "a", "k"], "known field"),
        ({"temperature": 2}, ["temperature"], "is not a known field"),
        ({"assets": {"a": {}}}, ["assets"], "takes no images"),
    ],
)
def test_wrong_fields_are_told_with_their_place(changes, place, message):
    reply = reply_to("POST", ASK, json={**body(), **changes})
    assert reply.status_code == 422
    problems = {tuple(problem["loc"]): problem["msg"] for problem in reply.json()["detail"]}
    assert message in problems[("body", *place)]


def test_255_options_and_one_more():
    labels = [f"option number {n}" for n in range(256)]
    engine = tiny_engine().with_settings(answer_encoding="labels", max_question_tokens=4096)

    def ask(count):
        questions = {"q": {"type": "choice", "instructions": "Which?", "criteria": labels[:count]}}
        return reply_to("POST", ASK, engine, json=body(questions=questions))

    assert len(ask(255).json()["answers"]["q"]["probabilities"]) == 255
    assert ask(256).status_code == 422


def test_a_context_of_100k_characters_is_refused_with_count_and_limit():
    reply = reply_to("POST", ASK, json=body("word " * 20_000))
    assert reply.status_code == 422
    assert "tokens, and the limit is 2048" in reply.json()["detail"][0]["msg"]


def test_large_bodies_are_413_whatever_they_say_of_themselves():
    async def parts():
        for _ in range(100):
            yield b" " * 1_000

    small = {"options": {"body_bytes": 2_000}}
    assert reply_to("POST", ASK, content=b" " * 2_001, headers=JSON, **small).status_code == 413
    assert reply_to("POST", ASK, content=parts(), headers=JSON, **small).status_code == 413
    assert reply_to("POST", ASK, json=body(), **small).status_code == 200


def test_a_slow_body_is_408():
    async def parts():
        yield b"{"
        await asyncio.sleep(1)
        yield b"}"

    reply = reply_to("POST", ASK, content=parts(), headers=JSON, options={"body_ms": 100})
    assert reply.status_code == 408
    assert reply.headers["connection"] == "close"


def test_zstd_bodies():
    headers = {**JSON, "content-encoding": "zstd"}
    plain = json.dumps(body()).encode()
    reply = reply_to("POST", ASK, content=zstandard.compress(plain), headers=headers)
    assert reply.status_code == 200
    streamed = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frames = streamed.compress(plain[:100]) + streamed.flush() + zstandard.compress(plain[100:])
    assert reply_to("POST", ASK, content=frames, headers=headers).status_code == 200
    assert reply_to("POST", ASK, content=plain, headers=headers).json()["detail"][0]["msg"].startswith("is no zstd")
    unknown = reply_to("POST", ASK, content=plain, headers={**JSON, "content-encoding": "gzip"})
    assert unknown.status_code == 422


def test_a_zstd_bomb_is_413_and_takes_no_memory():
    import tracemalloc

    streamed = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = b"".join(streamed.compress(bytes(1 << 20)) for _ in range(256)) + streamed.flush()
    assert len(bomb) < 100_000

    async def work(client):
        tracemalloc.start()
        reply = await client.post(ASK, content=bomb, headers={**JSON, "content-encoding": "zstd"})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return reply.status_code, peak

    status, peak = served(work)
    assert status == 413
    assert peak < 16 << 20
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    ).compressobj()
    frame = wide.compress(json.dumps(body()).encode()) + wide.flush()
    assert reply_to("POST", ASK, content=frame, headers={**JSON, "content-encoding": "zstd"}).status_code == 422


def test_only_json_is_read():
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = reply_to("POST", ASK, content=json.dumps(body()), headers={"content-type": kind})
        assert reply.json()["detail"][0]["msg"].startswith("is not JSON")
    parts = reply_to("POST", ASK, files={"image": b"png"}, data={"request": "{}"})
    assert "takes no images" in parts.json()["detail"][0]["msg"]
    spelled = reply_to("POST", ASK, content=json.dumps(body()), headers={"content-type": "Application/JSON; charset=x"})
    assert spelled.status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 403),
        ("", 403),
        (f"Bearer {KEY}", 200),
        (f"bearer {KEY}", 200),
        ("Bearer other", 200),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
        ("Bearer", 401),
        (f"Basic {KEY}", 401),
        (KEY, 401),
        ("Bearer ÿ".encode("latin-1"), 401),
    ],
)
def test_keys(header, status):
    headers = {} if header is None else {"authorization": header}
    options = {"keys": (KEY, "other")}
    for path in ("/v1/models", "/v1/workflows", "/metrics"):
        reply = reply_to("GET", path, options=options, headers=headers)
        assert reply.status_code == status
        assert reply.headers["x-typesafe-request-id"].startswith("req_")
    assert reply_to("POST", ASK, options=options, headers=headers, json=body()).status_code == status
    assert reply_to("GET", "/health/live", options=options, headers=headers).status_code == 200


def test_without_a_key_no_other_name_reaches_the_server():
    for host in ("localhost", "localhost:8600", "127.0.0.1:8600", "[::1]:8600"):
        assert reply_to("GET", "/v1/models", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.1"):
        assert reply_to("GET", "/v1/models", headers={"host": host}).status_code == 403


def test_unknown_routes_and_methods():
    reply = reply_to("GET", "/v1/nothing")
    assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
    assert reply.headers["x-typesafe-request-id"]
    reply = reply_to("GET", ASK)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


def test_ready_is_true_to_life():
    async def work(client):
        service = client.service
        gate = threading.Event()
        engine = Wrapped(before=lambda requests: gate.wait(20))

        async def ready():
            reply = await client.get("/health/ready")
            assert (reply.status_code == 200) == (reply.json()["status"] == "ready")
            assert (await client.get("/health/live")).status_code == 200
            return reply.json()["status"]

        async def refused():
            reply = await client.post(ASK, json=body())
            assert float(reply.headers["retry-after-ms"]) > 0
            assert float(reply.headers["retry-after"]) >= 1
            return reply.status_code

        assert await ready() == "loading"
        assert await refused() == 529
        service.install(engine)
        assert await ready() == "ready"
        asked = asyncio.create_task(client.post(ASK, json=body()))
        await until_async(lambda: service.state == "wedged")
        assert await ready() == "wedged"
        assert await refused() == 503
        gate.set()
        assert (await asked).status_code == 200
        assert await ready() == "ready"
        service.draining = True
        assert await ready() == "draining"
        assert await refused() == 503

    served(work, False, stall_ms=200)


def test_a_request_over_its_deadline_is_503_before_the_client_gives_up():
    gate = threading.Event()
    engine = Wrapped(before=lambda requests: gate.wait(20))

    async def work(client):
        reply = await client.post(ASK, json=body())
        gate.set()
        return reply

    reply = served(work, engine, deadline_ms=150)
    assert (reply.status_code, reply.json()["detail"]) == (503, "no answer within 150 ms")
    assert "retry-after-ms" in reply.headers


def test_answers_do_not_depend_on_neighbours_and_never_mix():
    gate = threading.Event()
    engine = Wrapped(before=lambda requests: gate.wait(20))
    texts = [f"Complaint {n}: the box " + "was torn " * (n % 5) for n in range(24)]

    def asked(n):
        levels = [[f"marker {n}", level] for level in range(2 + n % 3)]
        return body(texts[n], {f"q{n}": {"type": "score", "instructions": "How bad?", "criteria": levels}, **QUESTIONS})

    async def work(client):
        alone = [await client.post(ASK, json=asked(n)) for n in range(24)]
        gate.clear()
        first = asyncio.create_task(client.post(ASK, json=body()))
        await until_async(lambda: len(engine.batches) == 25)
        others = [asyncio.create_task(client.post(ASK, json=asked(n))) for n in range(24)]
        await until_async(lambda: client.service._batcher.room.requests == 24)
        gate.set()
        await first
        return alone, await asyncio.gather(*others)

    gate.set()
    alone, together = served(work, engine)
    assert max(engine.batches) > 4
    for n, (one, other) in enumerate(zip(alone, together, strict=True)):
        found, wanted = other.json(), one.json()
        assert found["answers"][f"q{n}"]["legend"]["0"] == [f"marker {n}", 0]
        assert found["usage"] == wanted["usage"]
        for name, answer in wanted["answers"].items():
            for field, value in answer.items():
                approx = pytest.approx(value, abs=1e-5) if field not in ("type", "choice", "legend") else value
                assert found["answers"][name][field] == approx


def test_near_ties_are_settled_when_the_engine_is_stable():
    engine = tiny_engine().with_settings(stable=True)
    tie = {"tie": {"type": "choice", "instructions": "Which?", "criteria": ["a", "b"]}}
    drift = reply_to("POST", f"{ASK}?debug=1", engine, json=body(questions=tie)).json()["debug"]["metadata"]["drift"]
    assert drift["status"] == "measured"
    wide = engine._drift.of("packed")
    engine._drift.keep("packed", type(wide)(100.0, wide.status))
    found = reply_to("POST", f"{ASK}?debug=1", engine, json=body(questions=tie)).json()
    assert found["debug"]["metadata"]["questions"]["tie"]["settled"] is True
    oracle = engine.oracle(STATE, tie)["answers"]["tie"]["probabilities"]
    assert found["answers"]["tie"]["probabilities"] == pytest.approx(oracle, abs=1e-6)


class OutOfMemory(RuntimeError):
    pass


def test_an_out_of_memory_in_one_batch_hurts_nobody(caplog):
    gate = threading.Event()

    def before(requests):
        gate.wait(20)
        if len(requests) > 1:
            raise OutOfMemory("CUDA out of memory; Tried to allocate")

    engine = Wrapped(before=before)

    async def work(client):
        tasks = [asyncio.create_task(client.post(ASK, json=body()))]
        await until_async(lambda: engine.batches)
        tasks += [asyncio.create_task(client.post(ASK, json=body(f"text {n}"))) for n in range(3)]
        await until_async(lambda: client.service._batcher.room.requests == 3)
        gate.set()
        replies = await asyncio.gather(*tasks)
        return [reply.status_code for reply in replies], (await client.get("/metrics")).text

    with caplog.at_level(logging.INFO, "jevify.serve"):
        statuses, metrics = served(work, engine)
    assert statuses == [200] * 4
    assert engine.batches == [1, 3, 1, 1, 1]
    assert 'jevify_batch_failures_total{error="OutOfMemory"} 1.0' in metrics
    told = [record.fields for record in caplog.records if record.getMessage() == "batch failed"]
    assert [(fields["error"], fields["requests"]) for fields in told] == [("OutOfMemory", 3)]


def test_an_engine_failure_is_500_in_one_form_and_says_nothing_of_the_text(caplog):
    def before(requests):
        raise RuntimeError("broken by: my secret state")

    with caplog.at_level(logging.INFO, "jevify.serve"):
        reply = reply_to("POST", ASK, Wrapped(before=before), json=body("my secret state"))
    assert (reply.status_code, reply.json()) == (500, {"detail": "the engine failed on this request"})
    lines = [JsonLines().format(record) for record in caplog.records]
    assert "RuntimeError" in " ".join(lines)
    assert "secret" not in " ".join(lines)


def test_one_log_line_a_request_without_its_text(caplog):
    with caplog.at_level(logging.INFO, "jevify.serve"):
        reply = reply_to("POST", ASK, json=body("my secret state"))
        reply_to("POST", ASK, json=body("my secret state", {"secret": {"type": "guess"}}))
        reply_to("GET", "/secret")
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    first, second, third = [line for line in lines if line["event"] == "request"]
    assert first["id"] == reply.headers["x-typesafe-request-id"]
    assert (first["status"], first["route"], first["batch"]) == (200, ASK, 1)
    assert first["tokens"] == reply.json()["usage"]["input_tokens"]
    assert first["queue_ms"] >= 0 < first["compute_ms"] <= first["total_ms"]
    assert (second["status"], second["reason"]) == (422, "invalid")
    assert (third["status"], third["route"]) == (404, "none")
    assert "secret" not in json.dumps(lines)


def test_metrics():
    async def work(client):
        for _ in range(3):
            await client.post(ASK, json=body())
        await client.post(ASK, content=b"{", headers=JSON)
        return (await client.get("/metrics")).text, (await client.post(ASK, json=body())).json()["usage"]

    text, usage = served(work, tiny_engine().with_settings(temperature=2.0))
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    assert values['jevify_requests_total{route="/v1/systemone",status="200"}'] == 3
    assert values['jevify_requests_total{route="/v1/systemone",status="422"}'] == 1
    assert values['jevify_refused_total{reason="invalid"}'] == 1
    assert values["jevify_tokens_total"] == 3 * usage["input_tokens"] == values["jevify_batch_tokens_sum"]
    assert values["jevify_batch_requests_count"] == values["jevify_batch_requests_sum"] == 3
    assert values['jevify_stage_seconds_count{stage="compute"}'] == 3
    assert values['jevify_stage_seconds_bucket{le="10.0",stage="queue"}'] == 3
    assert (values["jevify_ready"], values["jevify_queue_requests"], values["jevify_queue_tokens"]) == (1, 0, 0)
    assert values["jevify_engine_decisions_total"] == 3
    assert values['jevify_engine_forward_calls_total{executor="packed"}'] == 3


def test_graph_counters_reach_the_metrics():
    class Graphed(Wrapped):
        def counters(self):
            graphs = {"captures": 2, "replays": 40, "fallbacks": 3, "evictions": 1, "last_fallback": "too large"}
            return {"decisions": 5, "packed": {"forward_calls": 43, "graphs": graphs}}

    async def work(client):
        await client.post(ASK, json=body())
        await until_async(lambda: client.service._batcher.engine_counters)
        return (await client.get("/metrics")).text

    text = served(work, Graphed())
    for event, value in (("captures", 2), ("replays", 40), ("fallbacks", 3), ("evictions", 1)):
        assert f'jevify_engine_graphs_total{{event="{event}",executor="packed"}} {value}.0' in text


def test_the_page_is_served_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "PAGE", tmp_path)
    assert reply_to("GET", "/").headers["location"] == "/docs"
    (tmp_path / "index.html").write_text("<p>the page")
    (tmp_path / "page.js").write_text("1")
    page = reply_to("GET", "/")
    assert (page.text, page.headers["content-type"]) == ("<p>the page", "text/html; charset=utf-8")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert reply_to("GET", "/page/page.js").text == "1"
    assert reply_to("GET", "/page/../app.py").status_code == 404


def test_the_docs_page_needs_nothing_from_elsewhere():
    docs = reply_to("GET", "/docs")
    assert "/v1/systemone" in docs.text
    assert "http" not in docs.text.replace("HTTP", "").replace("https://json-schema", "")
    assert "default-src 'self'" in docs.headers["content-security-policy"]


def test_spans_where_something_configured_them():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    assert reply_to("POST", ASK, json=body()).status_code == 200
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = reply_to("POST", ASK, json=body(), headers={"traceparent": parent})
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == parent.split("-")[1]
    assert span.attributes["jevify.id"] == reply.headers["x-typesafe-request-id"]
    assert span.attributes["jevify.status"] == 200
    assert span.attributes["jevify.route"] == ASK
    assert span.attributes["jevify.compute_ms"] > 0
