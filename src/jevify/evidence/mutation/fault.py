"""A planted fault: one passage of the source replaced by a wrong one."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from jevify.errors import InputError


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in the source of `module`, becomes `new`.

    row: the kind of fault this is an instance of, by its number in the project's list of kinds, or "" for one of our
    own.
    """

    name: str
    says: str
    module: str
    old: str
    new: str
    row: str = ""

    @property
    def path(self) -> Path:
        """The file of the module, found without importing it."""
        spec = find_spec(self.module)
        if spec is None or spec.origin is None:
            raise InputError(f"fault {self.name}: there is no module {self.module}")
        return Path(spec.origin)

    def source(self) -> str:
        """The module's source with the fault in it.

        Raises InputError when the passage is not there once: the code was changed, and the fault must follow it.
        """
        text = self.path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise InputError(
                f"fault {self.name}: its passage stands {count} times in {self.module}, not once; write it anew in "
                "src/jevify/evidence/mutation/faults.toml"
            )
        return text.replace(self.old, self.new)


@cache
def all_faults() -> tuple[Fault, ...]:
    """The faults that come with the package, in order."""
    text = files("jevify.evidence.mutation").joinpath("faults.toml").read_text(encoding="utf-8")
    return tuple(Fault(**entry) for entry in tomllib.loads(text)["fault"])


def named_faults(names: Sequence[str]) -> list[Fault]:
    """The faults of these names. Raises InputError for one that is not known."""
    known = {fault.name: fault for fault in all_faults()}
    for name in names:
        if name not in known:
            raise InputError(f"--fault {name}: is not known; jevify evidence mutate --list prints the names")
    return [known[name] for name in names]
