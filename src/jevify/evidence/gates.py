"""What counts as good enough, read from `gates.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from jevify.errors import InputError
from jevify.evidence.fields import check_keys, require_table

Section = TypeVar("Section")

FILE = Path("gates.toml")
"""Where the thresholds are, from the top of the repository."""


@dataclass(frozen=True)
class SpeedGate:
    """material_gain: least gain worth a setting, as a ratio of medians."""

    material_gain: float


@dataclass(frozen=True)
class QualityGate:
    """Of answers in one dtype against the fp32 oracle; changes are absolute, agreements shares of questions."""

    largest_difference: float
    least_agreement: float
    least_agreement_outside_near_ties: float
    accuracy_change: float
    nll_change: float
    brier_change: float
    ece_change: float


@dataclass(frozen=True)
class ParityGate:
    """Largest distances on tiny models and single operations; `violations` is a count, `ulp_...` whole steps."""

    hidden_state: float
    log_probability: float
    isolation: float
    probability: float
    attention_float32: float
    attention_float16: float
    attention_bfloat16: float
    ulp_float32: float
    ulp_low_precision: float
    low_precision_mismatch: float
    roundings: float
    low_precision_excess: float
    violations: float


@dataclass(frozen=True)
class MutationGate:
    """least_caught: share of the planted faults that some check must reject; least_faults: how many to plant."""

    least_caught: float
    least_faults: float


@dataclass(frozen=True)
class Gates:
    """All thresholds; `quality` by dtype name."""

    speed: SpeedGate
    quality: Mapping[str, QualityGate]
    parity: ParityGate
    mutation: MutationGate


def load_gates(path: Path = FILE) -> Gates:
    """Read the thresholds. Raises InputError, naming the place, for anything unknown, missing or wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); run from the repository, or name the file of thresholds"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: not a TOML file: {error}") from error
    check_keys(Gates, data, str(path))
    require_table(data["quality"], f"{path}.quality")
    return Gates(
        speed=_section(SpeedGate, data["speed"], f"{path}.speed"),
        quality={name: _section(QualityGate, part, f"{path}.quality.{name}") for name, part in data["quality"].items()},
        parity=_section(ParityGate, data["parity"], f"{path}.parity"),
        mutation=_section(MutationGate, data["mutation"], f"{path}.mutation"),
    )


def _section(kind: type[Section], data: Any, where: str) -> Section:
    require_table(data, where)
    check_keys(kind, data, where)
    for name, value in data.items():
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise InputError(f"{where}.{name}: {value!r} is not a number of at least 0")
    return kind(**{entry.name: float(data[entry.name]) for entry in fields(kind)})  # type: ignore[arg-type]
