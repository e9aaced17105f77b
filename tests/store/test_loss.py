"""A loss is known at the next open, whoever opened the log before, and however that open ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.errors import CorruptBatch
from krappy.settings.topic import TopicConfig
from krappy.store import loss
from krappy.store.disk import Disk
from krappy.store.format import TROUBLE
from krappy.store.log import Log
from krappy.store.loss import Trouble
from tests.store.logs import made

CONFIG = TopicConfig(segment_bytes=2000)


def filled(folder: Path, count: int = 25) -> Path:
    """Makes a log in several segments, as a killed process leaves it; returns the file of its last segment."""
    log = Log.open(folder, CONFIG)
    for number in range(count):
        log.append([made(b"value %d" % number * 20)], 0, 1)
        log.sync()
    return max(folder.glob("*.log"))


def flip(file: Path, value: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(value)] ^= 1
    file.write_bytes(data)


def test_a_log_without_trouble_has_no_note(tmp_path: Path) -> None:
    filled(tmp_path / "t-0")
    assert not Log.open(tmp_path / "t-0", CONFIG).recovery.lost
    assert loss.noted(tmp_path / "t-0") is None


def test_a_recovery_that_loses_events_notes_it(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    flip(filled(folder), b"value 23")
    assert Log.open(folder, CONFIG).recovery.lost
    for _ in range(2):
        assert not Log.open(folder, CONFIG).recovery.lost
        noted = loss.noted(folder)
        assert noted is not None
        assert noted[0] is Trouble.LOST
    loss.note(folder, Trouble.DAMAGED, "something else")
    assert loss.noted(folder) == noted
    loss.forget(folder)
    assert loss.noted(folder) is None


class Killed(Exception):
    pass


class Dying(Disk):
    """A disk that dies before it changes a file of the log."""

    def rename(self, old: Path, new: Path) -> None:
        raise Killed


def test_the_note_comes_before_the_change(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    flip(filled(folder), b"value 23")
    with pytest.raises(Killed):
        Log.open(folder, CONFIG, disk=Dying())
    noted = loss.noted(folder)
    assert noted is not None
    assert noted[0] is Trouble.LOST


@pytest.mark.parametrize("data", [b"", b"\xff", b"lost: x", b"something"])
def test_a_note_that_cant_be_read_is_a_loss(tmp_path: Path, data: bytes) -> None:
    (tmp_path / TROUBLE).write_bytes(data)
    noted = loss.noted(tmp_path)
    assert noted is not None
    assert noted[0] is Trouble.LOST


def test_a_cleaning_finds_damage(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    filled(folder)
    log = Log.open(folder, CONFIG)
    flip(min(folder.glob("*.log")), b"value 1v")
    with pytest.raises(CorruptBatch):
        log.clean(lambda candidates: [True] * len(candidates), log.end_offset, 1)
    assert log.damage
