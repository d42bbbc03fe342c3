"""The load script, on a tiny model: it runs to its end, and nothing is lost or mixed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]


def test_a_short_run(tmp_path):
    tiny.model("qwen2").save_pretrained(tmp_path / "tiny")
    tiny.tokenizer().save_pretrained(tmp_path / "tiny")
    command = [sys.executable, ROOT / "scripts/load_test.py", tmp_path / "out.json", "--seconds", "0.5", "--clients"]
    command += ["1", "4", "--words", "5", "--texts", "20", "--tolerance", "2e-5", "--", "--model", tmp_path / "tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*map(str, command), "--device", "cpu"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert list(result["phases"]) == ["closed loop, 1 clients", "closed loop, 4 clients", "open loop, 10 x capacity"]
    assert result["exit_code"] == 0
    assert result["least_distance_between_answers"] > result["tolerance"]
    answered = 20  # Alone, before the phases.
    for phase in result["phases"].values():
        assert phase["wrong_answers"] == phase["refusals_without_retry_after_ms"] == 0
        assert set(phase["statuses"]) <= {"200", "429", "503"}
        assert phase["statuses"]["200"] > 0
        answered += sum(phase["statuses"].values())
    assert result["log_lines"]["request"] == answered
