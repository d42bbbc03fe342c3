"""The flags of a decision: spelling, contradictions, and what is refused without torch."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import jevify
from jevify.cli import decide, loading
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
        ("--context a --calibration c.json", "--calibration is not in this version"),
        ("--context a --adapter dir", "--adapter is not in this version"),
        ("--context a --device tpu", "--device is 'tpu'"),
        ("--context a --device cuda:x", "--device is 'cuda:x'"),
        ("--context a --dtype int8", "invalid choice: 'int8'"),
        ("--context a --max-graphs many", "'many' is not a whole number"),
        ("--context a --max-graphs 1_0", "'1_0' is not a whole number"),
        ("--context a --temperature=1_0", "'1_0' is not a decimal number"),
        ("--context a --temperature=１", "'１' is not a decimal number"),
        ("--context a --temperature=nan", "'nan' is not a decimal number"),
        ("--context a --fused-kernels", "--fused-kernels: expected at least one argument"),
        ("--context a --output -", "--output: -: give a file; standard output already gets the result"),
        ("--context a --executor packed --executor forked", "--executor is given twice"),
        ("--context a --output o --output p", "--output is given twice"),
        ("--workflow w --workflow w --context a", "--workflow is given twice"),
        ("--context a --model smollm2-135m --model b", "--model is given twice"),
        ("--context a --temperature 1 --temperature 2", "--temperature is given twice"),
        ("--context a --fused-kernels rope --fused-kernels rope", "--fused-kernels is given twice"),
        ("--context -rude", "--flag=VALUE"),
        ("--context a stray", "unrecognized arguments: stray"),
    ],
)
def test_contradictions_are_refused(line, said):
    with pytest.raises(InputError, match=said) as caught:
        parse_decide(line.split())
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("word", "value"), [("2", 2.0), (".5", 0.5), ("+1.", 1.0), ("1e-1", 0.1)])
def test_temperatures_are_plain_decimal_numbers(word, value):
    assert parse_decide([*TEXT, f"--temperature={word}"]).temperature == value


@pytest.mark.parametrize("flag", ["--workflow", "--request", "--input", "--context-file", "--output"])
def test_a_path_is_looked_at_once_for_all(flag):
    for word, said in (("", f"{flag}: is empty"), ("x" * 5000, "cannot be used"), ("a\0b", "cannot be used")):
        with pytest.raises(InputError, match=said):
            parse_decide([f"{flag}={word}"])


@pytest.mark.parametrize(
    "words", [["bench", "--show", "x" * 300], ["bench", "x" * 300], ["bench", "x" * 300 + ".toml"]]
)
def test_names_that_are_too_long_are_told_in_one_message(folder, capsys, words):
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("model", ["x" * 300, "a" * 97 + "/b", "a/..", "x--y/z", "x/y.git", "/x" * 3000])
def test_model_names_that_cannot_be_are_told_in_one_message(folder, capsys, model):
    with pytest.raises(InputError, match="unknown model"):
        loading.fetch(model, None, False)
    for words in (["models", "path", model], ["models", "verify", model], ["models", "pull", model]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("jevify: unknown model ")
        assert len(line) < 500


def test_commands_refuse_repeated_values_too(capsys):
    assert main(["bench", "x", "--repeats", "1", "--repeats", "2"]) == 2
    assert "--repeats is given twice" in capsys.readouterr().err
    assert main(["models", "path", "a/b", "--revision", "v1", "--revision", "v2"]) == 2
    assert "--revision is given twice" in capsys.readouterr().err


def test_an_argument_that_is_not_utf8_is_told(capsys):
    assert main(["--context", "caf\udce9"]) == 2
    assert capsys.readouterr().err == "jevify: argument 2 (caf\\udce9) is not UTF-8 text: convert it to UTF-8\n"


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jevify {jevify.__version__}\n"


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
        ("--temperature 0.001", "--temperature is 0.001"),
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
    ("--context x --stable --model none", 2),
    ("--context x --workflow none.json", 2),
    ("--context x --temperature 0", 2),
    ("--context ' '", 2),
    ("--context x --prompt ' '", 2),
    ("--context x --output none/o.json", 2),
    ("--context x --model none", 2),
    ("--context x --revision main", 2),
    ("--input none.json", 2),
    ("serve --help", 0),
    ("serve --port 70000", 2),
    ("batch --help", 0),
    ("batch none.jsonl out.jsonl", 2),
    ("serve --host 0.0.0.0", 2),
    ("serve --workflow none.json", 2),
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
        "--no-length-grouping --prompt-format --answer-encoding --max-label-tokens --warmup --no-warmup --strict "
        "--version"
    ):
        assert f"  {flag}" in done.stdout, flag
