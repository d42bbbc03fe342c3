"""A run names the source that ran."""

import subprocess
from pathlib import Path

import pytest

from jevify.evidence import environment as module
from jevify.evidence.environment import environment

pytestmark = pytest.mark.cpu


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder in the place of the running one."""
    folder = tmp_path / "repository" / "package"
    folder.mkdir(parents=True)
    (folder / "errors.py").write_text("A = 1\n")
    monkeypatch.setattr(module, "_SOURCE", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    command = ("git", *identity, "-C", str(folder.parent), *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_and_changes_of_the_repository(source: Path) -> None:
    git(source, "init", "--quiet")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "--message", "first")
    found = environment("x")
    assert (found["commit"], found["dirty"], found["commit_unknown"]) == (git(source, "rev-parse", "HEAD"), False, None)
    (source.parent / "note.txt").write_text("new")
    assert environment("x")["dirty"] is True


def test_a_copy_that_git_does_not_hold_has_no_commit(source: Path) -> None:
    assert environment("x")["commit_unknown"] == "the running source is not in a git repository"
    git(source, "init", "--quiet")
    (source.parent / "other.txt").write_text("tracked")
    git(source, "add", "other.txt")
    git(source, "commit", "--quiet", "--message", "first")
    found = environment("x")
    assert (found["commit"], found["dirty"]) == (None, None)


def test_source_digest_follows_the_source(source: Path) -> None:
    first = environment("x")["source_sha256"]
    assert environment("x")["source_sha256"] == first
    (source / "errors.py").write_text("A = 2\n")
    assert environment("x")["source_sha256"] != first
