"""Proof that a folder holds what was put there: hashes of its files, and a digest of its tensors."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from jevify.models.progress import Progress, Silent

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1
_CHUNK = 1 << 20


def _feed(stream: IO[bytes], update: Callable[[bytes], object], count: int, progress: Progress) -> int:
    """Pass up to `count` bytes of `stream` to `update`; returns how many there were."""
    done = 0
    while done < count and (block := stream.read(min(_CHUNK, count - done))):
        update(block)
        progress.advance(len(block))
        done += len(block)
    return done


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file as lower-case hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        _feed(stream, digest.update, path.stat().st_size, progress or Silent())
    return digest.hexdigest()


def tensor_digest(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 over the tensors of a safetensors file, whatever their order in it and its metadata.

    For each tensor in the order of the sorted names: name, dtype (as safetensors spells it) and the JSON list
    of the shape, each followed by a zero byte, then the raw little-endian bytes. Raises OSError, or
    ValueError when the file is not a whole safetensors file.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for name, dtype, shape, begin, count in _tensors(stream, path.stat().st_size):
            for part in (name, dtype, json.dumps(shape)):
                digest.update(part.encode() + b"\0")
            stream.seek(begin)
            if _feed(stream, digest.update, count, progress or Silent()) != count:
                raise ValueError(f"the file ends inside the tensor {name}")
    return digest.hexdigest()


def _tensors(stream: IO[bytes], size: int) -> list[tuple[str, str, list[int], int, int]]:
    """Name, dtype, shape, position in the file and byte count of each tensor, by sorted names."""
    header_size = int.from_bytes(stream.read(8), "little")
    start = 8 + header_size
    try:
        if start > size:
            raise ValueError("the header is longer than the file")
        header: dict[str, Any] = json.loads(stream.read(header_size))
        tensors = []
        for name in sorted(header.keys() - {"__metadata__"}):
            begin, end = header[name]["data_offsets"]
            tensors.append((name, header[name]["dtype"], header[name]["shape"], start + begin, end - begin))
        return tensors
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no whole safetensors header ({error})") from error


def _payload(folder: Path) -> list[Path]:
    """Files of `folder` that a manifest covers: all but itself and what file managers leave (dot files)."""
    return sorted(p for p in folder.iterdir() if p.name != MANIFEST_NAME and not p.name.startswith("."))


def write_manifest(folder: Path, source: dict[str, str], progress: Progress | None = None) -> None:
    """Hash every file of `folder` and write the manifest, whole or not at all.

    `source` says what the folder was made from, as `read_manifest` will have to find it. Raises OSError.
    """
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path, progress)} for path in _payload(folder)
    }
    partial = folder / f".{MANIFEST_NAME}.partial"
    content = {"format": MANIFEST_FORMAT, "source": source, "files": files}
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / MANIFEST_NAME)


def read_manifest(folder: Path, source: dict[str, str]) -> dict[str, dict[str, Any]] | None:
    """Map from file name to its "bytes" and "sha256"; None without a readable manifest made from `source`."""
    try:
        content = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        if content["format"] != MANIFEST_FORMAT or content["source"] != source:
            return None
        return {
            str(name): {"bytes": int(facts["bytes"]), "sha256": str(facts["sha256"])}
            for name, facts in content["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def looks_complete(folder: Path, source: dict[str, str]) -> bool:
    """The quick check: a manifest made from `source`, and every file of it present in its full size."""
    files = read_manifest(folder, source)
    if not files:
        return False
    try:
        return all((folder / name).stat().st_size == facts["bytes"] for name, facts in files.items())
    except (OSError, ValueError):
        return False


def manifest_problems(folder: Path, source: dict[str, str], progress: Progress | None = None) -> list[str]:
    """Every way in which `folder` differs from its manifest, one sentence each; re-hashes all files."""
    if not folder.is_dir():
        return [f"{folder} does not exist"]
    files = read_manifest(folder, source)
    if not files:
        return [f"{MANIFEST_NAME} is missing, unreadable or of another version of this model"]
    problems = []
    for name, facts in files.items():
        path = folder / name
        if not os.path.isfile(path):
            problems.append(f"{name} is missing")
        elif (size := path.stat().st_size) != facts["bytes"]:
            problems.append(f"{name} has {size:,} bytes instead of {facts['bytes']:,}")
        elif (found := file_sha256(path, progress)) != facts["sha256"]:
            problems.append(f"{name} has sha256 {found} instead of {facts['sha256']}")
    strangers = [path.name for path in _payload(folder) if path.name not in files]
    return problems + [f"{name} does not belong there" for name in strangers]
