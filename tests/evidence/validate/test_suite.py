"""The clean build passes every check on tiny models."""

import pytest

from jevify.accel.ops import triton_runtime
from jevify.evidence.gates import load_gates
from jevify.evidence.validate.suite import GROUPS, checks_of, run_tiny

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not triton_runtime.INTERPRETED, reason="needs Triton and its interpreter (no CUDA device)"),
]


def test_every_check_passes():
    found = run_tiny(load_gates())
    assert [outcome for outcome in found if not outcome.passed] == []
    assert len(found) == sum(len(checks_of(group)) for group in GROUPS) > 150


def test_names_are_told_apart():
    names = [check.name for group in GROUPS for check in checks_of(group)]
    assert len(set(names)) == len(names)
