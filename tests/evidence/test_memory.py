"""Peak memory of a phase is that phase's own."""

import sys
from pathlib import Path

import pytest

from jevify.evidence import memory
from jevify.evidence.memory import peak_memory

pytestmark = pytest.mark.cpu

_MIB = 1024 * 1024
_CAN_RESET = sys.platform.startswith("linux") and Path("/proc/self/clear_refs").exists()


@pytest.mark.skipif(not _CAN_RESET, reason="this system does not tell the peak memory of a phase")
def test_a_peak_is_seen_once_and_forgotten() -> None:
    large = peak_memory(lambda: bytes(b"x" * (96 * _MIB)))
    small = peak_memory(lambda: None)
    for peak in (large, small):
        assert peak.unavailable is None
        assert peak.resident_start is not None
        assert peak.resident_peak is not None
        assert peak.cuda_peak is None
    assert large.resident_peak - large.resident_start >= 90 * _MIB
    assert small.resident_peak - small.resident_start < 10 * _MIB


def test_a_system_without_the_number_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    ran = []
    peak = peak_memory(lambda: ran.append(True))
    assert ran == [True]
    assert peak.resident_peak is None
    assert peak.unavailable is not None
    assert "cannot be written" in peak.unavailable
