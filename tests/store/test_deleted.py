"""A log is deleted while its own cleaning or its own readers work, and a new log has its folder by then."""

from __future__ import annotations

import pytest

from krappy.errors import StorageError
from krappy.store.cleaner import Candidate, CleaningPace
from krappy.store.log import Log
from tests.store.compacted import CONFIG, Table
from tests.store.faulty_disk import FaultyDisk
from tests.store.logs import FOLDER, filled, made, rows


def remade(log: Log, disk: FaultyDisk) -> Log:
    """Deletes the log, and makes a new one in its folder, as when a topic is deleted and made anew."""
    log.destroy()
    return filled(FOLDER, 20, config=CONFIG, disk=disk)


class Deleting(CleaningPace):
    """At the pause `at` of a cleaning, deletes the log and makes another one."""

    def __init__(self, log: Log, disk: FaultyDisk, at: int) -> None:
        self.log, self.disk, self.at = log, disk, at
        self.new: Log | None = None
        self.pauses = 0

    def spend(self, size: int) -> None:
        if self.pauses == self.at:
            self.new = remade(self.log, self.disk)
            self.disk.log.clear()
        self.pauses += 1


@pytest.mark.parametrize("at", range(0, 30, 3))
def test_a_cleaning_writes_nothing_into_the_folder_of_the_next_log(at: int) -> None:
    disk = FaultyDisk()
    table = Table(disk=disk)
    table.fill(200, 15)
    pace = Deleting(table.log, disk, at)
    with pytest.raises(StorageError):
        table.log.clean(table.survives(), table.log.end_offset, 0, pace)
    assert pace.new is not None
    assert not [name for name in disk.log if not name.startswith(("write", "fdatasync"))], "of files that are open"
    assert len(rows(pace.new)) == 60
    pace.new.close()


def test_a_cleaning_reads_nothing_of_the_next_log() -> None:
    disk = FaultyDisk()
    table = Table(disk=disk)
    table.fill(200, 15)
    asked: list[Candidate] = []
    new: list[Log] = []

    def survives(candidates: list[Candidate]) -> list[bool]:
        if not new:
            new.append(remade(table.log, disk))
        asked.extend(candidates)
        return [True] * len(candidates)

    with pytest.raises(StorageError):
        table.log.clean(survives, table.log.end_offset, 0)
    assert {key for key, *_ in asked} <= table.latest.keys(), "the new log has other keys"


def test_a_reader_gets_nothing_of_the_next_log() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 20, disk=disk)
    segments = log._segments  # a reader has these when the log is deleted
    log.destroy()
    new = Log.open(FOLDER, CONFIG, disk=disk)
    for _ in range(20):
        new.append([made(b"another")], 0, 1)
    assert segments.infos()[0].base_offset == new.segments[0].base_offset
    with pytest.raises(FileNotFoundError):
        segments.read(0, 1000, 60, None, False, True)
