"""Where shared tree attention is faster than what it replaces, as measured on the device at hand.

A file of maps holds, by device name, the points of a measured grid. One comes with the package; one in the user's cache
folder, measured on the user's own device, wins over it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from platformdirs import user_cache_path

from jevify.errors import InputError

SHIPPED = Path(__file__).with_name("crossover.json")
UNMEASURED = "unmeasured"

Replaced = Literal["calls", "repeat"]
# For each thing replaced: the time of the kernel that takes its place, and its own.
_TIMES: Mapping[str, tuple[str, str]] = {"calls": ("kernel_us", "calls_us"), "repeat": ("behind_us", "repeat_us")}


@dataclass(frozen=True)
class Point:
    """Microseconds of one layer's attention for `branches` of `rows` tokens each behind a prefix of `prefix`.

    Packed, prefix and branches in one pass: kernel_us, and calls_us for the reference SDPA calls. Forked, the branches
    behind a finished prefix: behind_us for the kernel, repeat_us for repeated keys and values and batched SDPA. None
    where there is no time.
    """

    prefix: int
    branches: int
    rows: int
    kernel_us: float | None = None
    calls_us: float | None = None
    behind_us: float | None = None
    repeat_us: float | None = None


class CrossoverMap:
    """What the points of one device say. `source` tells where they come from."""

    def __init__(self, points: Sequence[Point], source: str) -> None:
        self.source = source
        self._grids = {replaced: _grid(points, *names) for replaced, names in _TIMES.items()}

    @classmethod
    def of(cls, device: str, files: Sequence[Path] | None = None) -> "CrossoverMap":
        """The map of a device by its name, from the first of `files` that has it.

        files: the user's, then the package's own, by default; one that does not exist has nothing. Raises InputError
        for a file that is no file of maps.
        """
        for file in files if files is not None else (user_file(), SHIPPED):
            points = read_maps(file).get(device)
            if points:
                return cls(points, f"measured on {device}")
        return cls((), UNMEASURED)

    def prefers_kernel(self, prefix: int, branches: int, rows: int, instead_of: Replaced = "calls") -> bool:
        """Whether the kernel was at least as fast at the nearest point, by the logarithms of the three sizes.

        rows: tokens of one branch. True where nothing was measured.
        """
        places, wins = self._grids[instead_of]
        if not len(wins):
            return True
        distance = ((places - _place(prefix, branches, rows)) ** 2).sum(axis=1)
        return bool(wins[int(distance.argmin())])


def user_file() -> Path:
    """The user's own maps."""
    return user_cache_path("jevify") / "measured" / "crossover.json"


def read_maps(file: Path) -> dict[str, list[Point]]:
    """The points of each device in a file of maps; none when it does not exist. Raises InputError."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return {device: [Point(**point) for point in points] for device, points in data.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: not a file of measured crossovers; delete it or measure again ({error})") from error


def write_map(file: Path, device: str, points: Sequence[Point]) -> None:
    """Put the points of a device into a file of maps, made with its folder when there is none."""
    maps = {**read_maps(file), device: list(points)}
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(_told(point)) for point in found) + "\n]"
        for name, found in maps.items()
    ]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _told(point: Point) -> dict[str, Any]:
    return {name: value for name, value in vars(point).items() if value is not None}


def _grid(points: Sequence[Point], ours: str, theirs: str) -> tuple[Any, Any]:
    """The places of the points that have both times, and where ours is not the slower."""
    both = [point for point in points if getattr(point, ours) is not None and getattr(point, theirs) is not None]
    places = np.array([_place(point.prefix, point.branches, point.rows) for point in both]).reshape(-1, 3)
    return places, np.array([getattr(point, ours) <= getattr(point, theirs) for point in both], dtype=bool)


def _place(prefix: int, branches: int, rows: int) -> Any:
    return np.log(np.maximum(1, np.array([prefix, branches, rows], dtype=float)))
