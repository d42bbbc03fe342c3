"""The flags of a decision: spelling, contradictions, and what is refused without torch."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jevify.cli import decide
from jevify.cli.arguments import parse_decide
from jevify.cli.main import PLANNED, main
from jevify.errors import InputError, SettingError

pytestmark = pytest.mark.cpu

TEXT = ["--context", "x"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a workflow.json of one question."""
    monkeypatch.chdir(tmp_path)
    questions = {"angry": {"type": "noul", "instructions": "Is the customer angry?"}}
    (tmp_path / "workflow.json").write_text(json.dumps({"questions": questions}), "utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    def load(*args, **kwargs):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(decide, "load_engine", load)


def test_the_line_of_the_source_document_parses():
    line = "--device cuda --cuda-graphs --fused-kernels rmsnorm swiglu rope --workflow workflow.json --interactive"
    args = parse_decide(line.split())
    assert (args.device, args.cuda_graphs, args.interactive) == ("cuda", True, True)
    assert args.fused_kernels == ["rmsnorm", "swiglu", "rope"]
    assert args.workflow == Path("workflow.json")
    assert decide.settings_of(args) == {
        "cuda_graphs": True,
        "fused_kernels": ["rmsnorm", "swiglu", "rope"],
    }


def test_every_flag_reaches_the_setting_of_its_name():
    line = (
        "--context x --model M --revision R --local-files-only --device cpu --dtype float32 --attention eager "
        "--mode parallel --executor packed --branch-batch-size 3 --token-budget 99 --max-graphs 5 "
        "--graph-budget-mb 6 --graph-keys bucketed --temperature 0.5 --json --no-efficient-cache --cuda-graphs "
        "--fused-kernels residual_norm --shared-attention on --no-short-attention --no-length-grouping "
        "--prompt-format json --answer-encoding labels --max-label-tokens 7 --warmup --strict --output o.json"
    )
    args = parse_decide(line.split())
    assert decide.settings_of(args) == {
        "attention": "eager",
        "executor": "packed",
        "branch_batch_size": 3,
        "token_budget": 99,
        "max_graphs": 5,
        "graph_budget_mb": 6,
        "graph_keys": "bucketed",
        "temperature": 0.5,
        "efficient_cache": False,
        "cuda_graphs": True,
        "fused_kernels": ["residual_norm"],
        "shared_attention": "on",
        "specialize_short": False,
        "length_aware": False,
        "prompt_format": "json",
        "answer_encoding": "labels",
        "max_label_tokens": 7,
        "strict": True,
    }
    assert (args.model, args.revision, args.local_files_only) == ("M", "R", True)
    assert (args.device, args.dtype, args.warmup, args.json) == ("cpu", "float32", True, True)
    assert args.output == Path("o.json")


def test_nothing_is_set_that_was_not_given():
    args = parse_decide(TEXT)
    assert decide.settings_of(args) == {}
    assert (args.model, args.device, args.dtype) == ("smollm2-135m", "auto", "auto")
    assert args.warmup is None
    assert parse_decide([*TEXT, "--no-warmup"]).warmup is False


def test_fused_kernels_may_name_none():
    assert parse_decide([*TEXT, "--fused-kernels"]).fused_kernels == []


@pytest.mark.parametrize("flag", ["--contex", "--work", "--no-warm", "--exec", "--fused"])
def test_there_are_no_abbreviations(flag):
    with pytest.raises(InputError, match="unrecognized arguments"):
        parse_decide([*TEXT, f"{flag}=x"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "there is no text"),
        ("--json", "there is no text"),
        ("--context a --context-file b", "--context and --context-file"),
        ("--request a --input b", "--request and --input"),
        ("--input a --interactive", "--input and --interactive"),
        ("--context a --request b --interactive", "--context and --request and --interactive"),
        ("--context a --context b", "--context is given twice"),
        ("--request a --prompt p", "in the request file"),
        ("--input a --prompt p", "in the input file"),
        ("--interactive --prompt p", "after /run"),
        ("--input a --workflow w", "brings its own questions"),
        ("--interactive --output o", "--output holds one result"),
        ("--context a --mode independent --executor packed", "--mode independent contradicts"),
        ("--context a --mode independent --executor forked", "--mode independent contradicts"),
        ("--context a --mode parallel --executor independent", "--mode parallel contradicts"),
        ("--context a --warmup --no-warmup", "not allowed with"),
        ("--context a --stable", "--stable: near-tie settling is not in this version"),
        ("--context a --calibration c.json", "--calibration is not in this version"),
        ("--context a --adapter dir", "--adapter is not in this version"),
        ("--context a --device tpu", "--device is 'tpu'"),
        ("--context a --device cuda:x", "--device is 'cuda:x'"),
        ("--context a --dtype int8", "invalid choice: 'int8'"),
        ("--context a --max-graphs many", "invalid int value"),
        ("--context -rude", "--flag=VALUE"),
        ("--context a stray", "unrecognized arguments: stray"),
    ],
)
def test_contradictions_are_refused(line, said):
    with pytest.raises(InputError, match=said) as caught:
        parse_decide(line.split())
    assert caught.value.exit_code == 2


def test_agreeing_mode_and_executor_are_accepted():
    for line in ("--mode independent --executor independent", "--mode parallel --executor packed"):
        parse_decide([*TEXT, *line.split()])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--token-budget 99", "--token-budget 99 has no effect on the forked executor"),
        ("--mode independent --no-efficient-cache", "has no effect on the independent executor"),
        ("--executor packed --branch-batch-size 2", "has no effect on the packed executor"),
        ("--branch-batch-size 0", "--branch-batch-size is 0"),
        ("--temperature nan", "--temperature is nan"),
        ("--attention flash", "--attention is 'flash'"),
        ("--fused-kernels rmsnorm gelu", "'gelu'"),
        ("--device cpu --cuda-graphs --strict", "--strict"),
    ],
)
def test_settings_are_refused_before_the_model_loads(folder, line, said):
    with pytest.raises(SettingError, match=said):
        decide.run(parse_decide([*TEXT, *line.split()]))


def test_auto_device_leaves_to_the_engine_what_one_device_can_do():
    settings = {"cuda_graphs": True, "strict": False}
    assert decide.check_settings(settings, "auto", "smollm2-135m") == 32


@pytest.mark.parametrize("name", PLANNED)
def test_planned_commands_say_so(name, capsys):
    assert main([name, "--flag"]) == 2
    assert "not in this version" in capsys.readouterr().err


def test_an_unknown_command_gets_a_suggestion(capsys):
    assert main(["modls"]) == 2
    assert "did you mean models?" in capsys.readouterr().err
    assert main(["My parcel is late"]) == 2
    assert "write --context TEXT" in capsys.readouterr().err


def test_commands_run_and_fail_like_the_rest(capsys):
    assert main(["schema", "workflow"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Workflow"
    assert main(["schema", "answer"]) == 2
    assert main(["models"]) == 2
    assert "see jevify models --help" in capsys.readouterr().err


LIGHT = [
    ("--help", 0),
    ("", 2),
    ("--context x --stable", 2),
    ("--context x --workflow none.json", 2),
    ("--context x --temperature 0", 2),
    ("--context ' '", 2),
    ("--context x --prompt ' '", 2),
    ("--context x --output none/o.json", 2),
    ("--context x --model none", 2),
    ("--context x --revision main", 2),
    ("--input none.json", 2),
    ("serve", 2),
    ("schema workflow", 0),
    ("models list", 0),
]


def test_help_and_bad_input_do_not_import_torch(folder):
    """One process for all, since what one line imports stays."""
    code = (
        "import sys\nfrom jevify.cli.main import main\nfor line in sys.argv[1:]:\n    import shlex\n"
        "    code = main(shlex.split(line))\n"
        "    heavy = {'torch', 'transformers', 'numpy'} & sys.modules.keys()\n"
        "    print('@', code, sorted(heavy), line)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *(line for line, _ in LIGHT)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("@")]
    assert found == [f"@ {code} [] {line}" for line, code in LIGHT], done.stderr


def test_python_m_jevify_is_the_command():
    done = subprocess.run([sys.executable, "-m", "jevify", "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for flag in shlex.split(
        "--workflow --request --context --context-file --input --prompt --interactive --output --model --revision "
        "--local-files-only --device --dtype --attention --mode --executor --branch-batch-size --token-budget "
        "--max-graphs --graph-budget-mb --graph-keys --temperature --stable --calibration --adapter --json "
        "--no-efficient-cache --cuda-graphs --fused-kernels --shared-attention --no-short-attention "
        "--no-length-grouping --prompt-format --answer-encoding --max-label-tokens --warmup --no-warmup --strict"
    ):
        assert f"  {flag}" in done.stdout, flag
