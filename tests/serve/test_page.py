"""The page in headless Chromium, against a server that answers as the real one does."""

import ast
import json
import shlex
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import jevify

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
PAGE = Path(jevify.__file__).parent / "serve" / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def answer(question):
    if question["type"] == "noul":
        return {"type": "noul", "noul": 0.93}
    if question["type"] == "score":
        levels = len(question["criteria"])
        shares = {str(level): 0.1 for level in range(levels)} | {str(levels - 1): 1 - 0.1 * (levels - 1)}
        mean = sum(int(level) * share for level, share in shares.items())
        legend = {str(level): told for level, told in enumerate(question["criteria"])}
        return {"type": "score", "score": mean, "legend": legend, "probabilities": shares, "confidence": 0.7}
    labels = list(question["criteria"])
    rest = 0.3 / max(1, len(labels) - 1)
    shares = {label: 0.7 if index == 0 else rest for index, label in enumerate(labels)}
    return {"type": "choice", "choice": labels[0], "probabilities": shares, "confidence": 0.6}


def decision(body):
    names = list(body["questions"])
    told = {name: {"tokens": 90, "lead": 0.1, "near_tie": name == names[-1], "settled": False} for name in names}
    stages = {"prepare": 0.8, "wait": 0.1, "pack": 0.4, "forward": 42.5, "scoring": 0.2, "total": 44.0}
    tree = [{"parent": None, "tokens": 120, "label": "context"}]
    tree += [{"parent": 0, "tokens": 60 + 5 * index, "label": name} for index, name in enumerate(names)]
    return {
        "model": "tiny",
        "answers": {name: answer(question) for name, question in body["questions"].items()},
        "usage": {"input_tokens": 300, "output_tokens": 0},
        "debug": {"metadata": {"stages_ms": stages, "questions": told}, "batch_size": 1, "tree": tree},
    }


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/v1/workflows":
            return self.reply(200, b'{"workflows": ["refund rubric"]}', "application/json")
        if self.path == "/v1/workflows/refund%20rubric":
            stored = {"questions": {"refund": {"type": "noul", "instructions": "Money back?"}}}
            return self.reply(200, json.dumps(stored).encode(), "application/json")
        name = {"/": "index.html"}.get(self.path, self.path.removeprefix("/page/"))
        file = PAGE / name
        if not file.is_file():
            return self.reply(404, b"{}", "application/json")
        return self.reply(200, file.read_bytes(), TYPES[file.suffix])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.headers, body))
        status, told, extra = self.server.script.pop(0) if self.server.script else (200, decision(body), {})
        return self.reply(status, json.dumps(told).encode(), "application/json", extra)

    def reply(self, status, content, kind, extra=None):
        self.send_response(status)
        policy = "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'"
        for name, value in {"Content-Type": kind, "Content-Security-Policy": policy, **(extra or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.script = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(browser, server):
    page = browser.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    yield page
    page.close()


def test_the_example_is_answered_with_bars_stages_and_the_tree(page, server):
    page.click("#example")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".answer")
    assert page.locator(".answer h3").all_text_contents() == ["department", "refund_requested", "severity"]
    assert page.locator(".verdict").all_text_contents() == ["billing", "yes", "1.70 of 0 to 2"]
    assert page.locator('[data-id="department"] .value').all_text_contents() == ["70.0 %", "10.0 %", "10.0 %", "10.0 %"]
    assert page.locator('[data-id="refund_requested"] .best .name').text_content() == "yes"
    assert page.locator('[data-id="severity"] .tie').count() == 1
    assert page.locator('[data-id="department"] .tie').count() == 0
    assert "forward 42.5 ms" in page.locator("#stages").text_content()
    assert page.locator("#tree rect").count() == 4
    assert page.locator("#tree title").first.text_content() == "context 120 tokens"
    _, body = server.asked[0]
    assert body["model"] == "jev-latest"
    assert body["state"].startswith("I was charged twice")
    assert list(body["questions"]["department"]["criteria"]) == ["billing", "shipping", "technical", "account"]
    assert page.faults == []


def test_what_the_server_and_the_person_write_stays_text(page, server):
    label = '<img src=x onerror="window.cracked=1">'
    page.fill("#context", "text")
    page.click("#as-json")
    page.fill("#rubric", json.dumps({"questions": {label: {"type": "choice", "criteria": {label: label, "b": None}}}}))
    page.click("#run")
    page.wait_for_selector(".answer")
    assert page.locator(".answer h3").text_content() == label
    page.click("#as-form")
    assert page.locator(".name").first.input_value() == label
    assert page.evaluate("window.cracked") is None
    assert page.locator("main img").count() == 0


def test_form_and_json_are_one_rubric_and_errors_keep_what_was_typed(page):
    page.click("#add")
    last = page.locator(".question").last
    last.get_by_label("Id", exact=True).fill("tone")
    last.get_by_label("Type").select_option("score")
    last = page.locator(".question").last
    last.get_by_label("Description 1").fill("calm")
    last.get_by_label("Description 2").fill("angry")
    last.get_by_label("Move up").click()
    page.click("#as-json")
    read = json.loads(page.input_value("#rubric"))["questions"]
    assert list(read)[-2] == "tone"
    assert read["tone"] == {"type": "score", "criteria": ["calm", "angry"]}
    for typed, told in (('{"questions": {', "JSON"), ('{"a": {"type": "nul"}}', "questions.a.type must be")):
        page.fill("#rubric", typed)
        assert told in page.text_content("#rubric-error")
        page.click("#as-form")
        assert page.input_value("#rubric") == typed
        assert page.is_visible("#rubric")


def test_a_stored_rubric_is_taken_over(page):
    page.select_option("#stored", "refund rubric")
    page.locator(".question").nth(1).wait_for(state="detached")
    assert page.locator(".name").input_value() == "refund"
    assert page.get_by_label("Instructions").input_value() == "Money back?"


def test_what_is_missing_is_said_before_anything_is_sent(page, server):
    page.click("#run")
    assert "Give a text first" in page.text_content("#problem")
    page.fill("#context", "text")
    page.locator(".question").first.get_by_label("Id", exact=True).fill("severity")
    page.click("#run")
    assert "used twice" in page.text_content("#problem")
    assert server.asked == []


def test_refusals_are_told_by_place_and_load_with_the_wait(page, server):
    page.click("#example")
    detail = [{"loc": ["body", "questions", "severity"], "msg": "too long", "type": "value_error"}]
    server.script += [
        (422, {"detail": detail}, {}),
        (429, {"detail": "busy"}, {"retry-after-ms": "300"}),
        (403, {"detail": "no key"}, {}),
    ]
    page.click("#run")
    page.wait_for_selector("#problem li")
    assert page.text_content("#problem li") == "questions.severity: too long"
    page.click("#run")
    again = page.locator("#problem button")
    again.wait_for()
    assert "Try again in 0.3 s" in page.text_content("#problem")
    assert again.is_disabled()
    again.click(timeout=5000)
    page.wait_for_selector("#key:visible")
    page.fill("#key", "secret")
    page.click("#run")
    page.wait_for_selector(".answer")
    assert server.asked[-1][0]["Authorization"] == "Bearer secret"
    assert "secret" not in page.url


def test_the_call_runs_in_a_shell_and_in_python(page, server):
    text = 'it\'s "quoted" $HOME `id` \\ back\nslash 日本 👩‍🚀'
    page.fill("#context", text)
    page.click("#run")
    page.wait_for_selector(".answer")
    page.click("#copy-curl")
    words = shlex.split(page.text_content("#call").replace("\\\n", " "))
    body = json.loads(words[words.index("--data-binary") + 1])
    assert body == server.asked[-1][1]
    assert body["state"] == text
    page.click("#copy-python")
    tree = ast.parse(page.text_content("#call"))
    written = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "body")
    assert ast.literal_eval(written) == server.asked[-1][1]


@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_runs_over_the_edge(browser, server, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    page.click("#example")
    page.click("#run")
    page.wait_for_selector(".answer")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_every_control_has_a_name_and_can_be_reached(page):
    page.click("#example")
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, input, select, textarea')].filter(
            (one) => one.offsetParent && !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length"""
    )
    assert unnamed == 0
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id"))
    assert {"context", "run", "add", "as-json", "example"} <= seen
