"""The thresholds file: the one of this repository, and what is refused in another."""

from pathlib import Path

import pytest

from jevify.errors import InputError
from jevify.evidence.gates import FILE, load_gates

pytestmark = pytest.mark.cpu
TEXT = FILE.read_text()


def test_the_thresholds_of_this_repository():
    gates = load_gates()
    assert gates.parity.hidden_state == 1e-5
    assert gates.speed.material_gain > 1
    assert set(gates.quality) == {"float32", "float16", "bfloat16"}
    assert gates.mutation.least_caught == 1
    assert gates.mutation.least_faults >= 20


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[speed]", "[pace]", r"gates.toml.pace: unknown field; the fields are speed, quality, parity, mutation"),
        ("material_gain = 1.05\n", "", r"gates.toml.speed.material_gain: missing"),
        (
            "hidden_state = 1e-5",
            "hidden_state = -1",
            r"gates.toml.parity.hidden_state: -1 is not a number of at least 0",
        ),
        ("hidden_state = 1e-5", "hidden_state = inf", r"hidden_state: inf is not a number"),
        ("hidden_state = 1e-5", "hidden_states = 1e-5", r"parity.hidden_states: unknown field"),
        ("[speed]", "[speed", r"not a TOML file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str):
    file = tmp_path / "gates.toml"
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(InputError, match=message):
        load_gates(file)


def test_a_missing_file_says_where_to_run(tmp_path: Path):
    with pytest.raises(InputError, match="run from the repository"):
        load_gates(tmp_path / "gates.toml")
