"""`jevify evidence mutate` and `jevify validate`: what they print, and what they refuse before anything loads."""

import json

import pytest

from jevify.accel.ops import triton_runtime
from jevify.cli.main import main

pytestmark = pytest.mark.cpu


@pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)")
def test_planted_faults_are_rejected_and_the_clean_build_is_not(tmp_path, capsys):
    file = tmp_path / "run.json"
    names = ["control-tokens-from-text", "rubric-cut-off-by-one", "merge-base-e"]
    assert main(["evidence", "mutate", "--fault", *names, "--output", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["clean"]["failed"] == []
    assert {row["fault"]: row["failed"][0] for row in result["faults"]} == {
        "control-tokens-from-text": "text.spelled-control-tokens",
        "rubric-cut-off-by-one": "text.compiled",
        "merge-base-e": "attention.kernel.merged",
    }
    told = capsys.readouterr()
    assert "3 of 3 planted faults are rejected" in told.out
    assert "4/4 " in told.err


def test_the_list_names_every_fault(capsys):
    assert main(["evidence", "mutate", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 20
    assert any(line.startswith("merge-base-e\t") for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evidence", "mutate", "--list", "--fault", "merge-base-e"], "act on a run"),
        (["evidence", "mutate", "--fault", "nonsense"], "--fault nonsense: is not known"),
        (["evidence", "mutate", "--force"], "--force acts on --output FILE"),
        (["evidence", "mutate", "--gates", "absent.toml"], "absent.toml: cannot be read"),
        (["validate", "decide", "--tiny", "--executor", "packed"], "--tiny loads no model"),
        (["validate", "decide", "--tiny", "--rows", "3"], "--tiny loads no model"),
        (["validate", "decide", "--warmup"], "unrecognized arguments: --warmup"),
        (["validate", "decide", "--rows", "0"], "--rows is 0"),
        (["validate", "decide", "--adapter", "x"], "--adapter is not in this version"),
        (["validate", "decide", "--executor", "packed", "--attention", "eager"], "no effect on the packed executor"),
        (["validate", "stream"], "invalid choice: 'stream'"),
    ],
)
def test_what_is_refused(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err
