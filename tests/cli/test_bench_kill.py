"""kill -9 in the middle of a run, then `--resume`, on a real model of a few values."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny

pytestmark = pytest.mark.cpu

SCENARIO = """
name = "killed"
kind = "decide"
model = "model"
device = "cpu"
dtype = "float32"
seed = 7
repeats = 16
oracle_requests = 1
cases = [
  { prefix_tokens = 60, question_tokens = 50, questions = 2 },
  { prefix_tokens = 60, question_tokens = 50, questions = 3 },
  { prefix_tokens = 60, question_tokens = 50, questions = 4 },
]
baseline = { executor = "independent", answer_encoding = "letters" }
candidates = [{ name = "packed", executor = "packed", answer_encoding = "letters" }]
"""


def test_a_killed_run_goes_on_with_its_next_case(tmp_path: Path) -> None:
    tiny.model("qwen2").save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "killed.toml").write_text(SCENARIO)
    stored = tmp_path / "run.json"
    command = [sys.executable, "-m", "jevify", "bench", "killed.toml", "--output", "run.json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        deadline = time.monotonic() + 120
        while not stored.exists() and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(running.pid, signal.SIGKILL)
        assert running.stderr is not None
        told = running.stderr.read().decode()
    assert running.returncode == -signal.SIGKILL, told
    left = json.loads(stored.read_text())
    assert left["interrupted"]
    assert 1 <= len(left["cases"]) < 3
    done = subprocess.run([*command, "--resume"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    whole = json.loads(stored.read_text())
    assert not whole["interrupted"]
    assert whole["cases"][: len(left["cases"])] == left["cases"]
    assert [case["case"]["questions"] for case in whole["cases"]] == [2, 3, 4]
    assert [len(row["samples_ms"]) for case in whole["cases"] for row in case["arms"]] == [16] * 6
