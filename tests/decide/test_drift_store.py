"""Measured drift on disk: exact keys, whole files, and damage that is told and measured again."""

import json
import logging
import threading

import pytest

from jevify.decide import drift_store
from jevify.decide.drift import Drift

pytestmark = pytest.mark.cpu
KEY = {"model": "tiny", "settings": {"fused_kernels": ("rope",)}}
DRIFT = Drift(0.25, questions=9, shapes={"alone": 0.25, "shared": 0.125})


def test_what_is_kept_is_found_by_its_key_alone(measured_folder):
    drift_store.keep(KEY, DRIFT)
    assert drift_store.find(KEY) == DRIFT
    assert drift_store.find({**KEY, "model": "other"}) is None
    assert drift_store.find({**KEY, "settings": {"fused_kernels": ()}}) is None
    assert [path.name for path in measured_folder.iterdir()] == [drift_store.path_of(KEY).name]


def test_a_second_measurement_replaces_the_first():
    drift_store.keep(KEY, DRIFT)
    drift_store.keep(KEY, Drift(0.5, questions=9, shapes={"alone": 0.5}))
    assert drift_store.find(KEY).nats == 0.5


def test_nothing_kept_is_silent(caplog):
    assert drift_store.find(KEY) is None
    assert caplog.records == []


def damaged(**changes):
    record = {"format": 1, "key": KEY, "nats": 0.25, "questions": 9, "shapes": {"alone": 0.25}, **changes}
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (damaged()[:-20], ""),
        (b"\xff\xfe", "decode"),
        (b"[1]", "no record of this version"),
        (damaged(format=0), "no record of this version"),
        (damaged(key={**KEY, "model": "other"}), "of another key"),
        (damaged(nats="0.1"), "not distances"),
        (damaged(nats=None), "not distances"),
        (damaged(nats=True), "not distances"),
        (damaged(nats=-0.5), "not distances"),
        (damaged(nats=float("nan")), "not distances"),
        (damaged(nats=float("inf")), "not distances"),
        (damaged(shapes={"alone": "far"}), "not distances"),
        (damaged(shapes={}), "not distances"),
        (damaged(shapes=[0.25]), "not distances"),
        (damaged(questions=0), "how many questions"),
        (damaged(questions=None), "how many questions"),
    ],
)
def test_a_damaged_file_is_told_and_as_none(content, reason, caplog):
    path = drift_store.path_of(KEY)
    path.write_bytes(content)
    assert drift_store.find(KEY) is None
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert reason in record.getMessage()
    drift_store.keep(KEY, DRIFT)
    assert drift_store.find(KEY) == DRIFT


def test_a_file_nested_too_deep_is_damage_too(caplog):
    drift_store.path_of(KEY).write_text("[" * 200_000)
    assert drift_store.find(KEY) is None
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(drift_store, "folder", lambda: tmp_path / "file" / "measured")
    drift_store.keep(KEY, DRIFT)
    assert drift_store.find(KEY) is None
    assert "cannot be written" in caplog.records[0].getMessage()


def test_writers_at_once_leave_a_whole_file_and_nothing_else(measured_folder):
    found = []

    def work(nats):
        for _ in range(20):
            drift_store.keep(KEY, Drift(nats, questions=9, shapes={"alone": nats}))
            found.append(drift_store.find(KEY))

    threads = [threading.Thread(target=work, args=(nats,)) for nats in (0.25, 0.5, 0.75)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert all(drift is not None and drift.shapes == {"alone": drift.nats} for drift in found)
    assert len(list(measured_folder.iterdir())) == 1
