"""Cleanings beside consumers that read committed events only: at every step, and after a stop between any two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from krappy.core.stability import Stability, marker
from krappy.errors import StorageError
from krappy.records import batch
from krappy.store.cleaner import Candidate, CleaningPace
from krappy.store.log import Log
from tests.store.compacted import CONFIG
from tests.store.faulty_disk import Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER
from tests.store.read_committed import read_committed

NOW = 1_000_000
SETTINGS = replace(CONFIG, delete_retention_ms=0)
ACCOUNTS = {b"account-%d" % number for number in range(5)}


class Readers(CleaningPace):
    """What readers beside a cleaning are told. The broker keeps it apart from what the log itself knows."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.told: Stability = log.producers.stability.copy()
        self.swaps = 0

    @contextmanager
    def swapping(self, markers: Sequence[int]) -> Iterator[None]:
        self.told.drop(markers)
        self.swaps += 1
        yield

    def check(self) -> None:
        check(self.log, self.told)


def check(log: Log, told: Stability) -> None:
    """Asserts that nothing committed is missing and nothing aborted comes, whatever the size of an answer."""
    for size in (1, 400, 1 << 20):
        found = [row.key for row in read_committed(log, told, max_bytes=size)]
        assert [key for key in found if key in ACCOUNTS] == sorted(ACCOUNTS)
        assert b"aborted" not in found


def survives(candidates: list[Candidate]) -> list[bool]:
    return [True] * len(candidates)


def append(log: Log, *keys: bytes, producer: int = -1, sequence: int = -1) -> None:
    data = batch.encode(
        keys,
        [b"v" * 60] * len(keys),
        timestamps=5,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
        transactional=producer >= 0,
    )
    log.append([(batch.check(data), data)], 0, NOW)


def end(log: Log, producer: int, *, commit: bool) -> None:
    data = marker(producer, 0, commit, 7)
    log.append([(batch.check(data), data)], 0, NOW)


def clean(log: Log, pace: CleaningPace | None = None) -> None:
    log.clean(survives, log.segments[-1].base_offset, NOW, pace or CleaningPace())


def due(disk: FaultyDisk) -> Log:
    """A log whose next cleaning takes, in its second segment, the marker of an aborted transaction that has no events
    left. The transactions of the same producer before and behind it are committed."""
    log = Log.open(FOLDER, SETTINGS, disk=disk)
    append(log, b"aborted", producer=7, sequence=0)
    for number in range(3):
        append(log, *[b"first-%d-%d" % (number, each) for each in range(3)])
    end(log, 7, commit=False)
    append(log, *sorted(ACCOUNTS), producer=7, sequence=1)
    end(log, 7, commit=True)
    for number in range(8):
        append(log, *[b"other-%d-%d" % (number, each) for each in range(4)])
    log.roll()
    for _ in range(2):  # one cleaning takes the events, one gives the marker its horizon
        clean(log)
    log.checkpoint()
    assert len(log.producers.stability) == 1
    check(log, log.producers.stability)
    return log


def markers(log: Log) -> int:
    found = at = 0
    while (span := log.read_span(at, 1 << 20)).data:
        found += sum(header.is_control for header, _ in batch.split(span.data))
        at = span.next_offset
    return found


def test_a_consumer_reads_between_any_two_steps_of_a_cleaning() -> None:
    disk = FaultyDisk()
    log = due(disk)
    readers, looking, looks = Readers(log), [False], 0

    def look(name: str) -> bool:
        nonlocal looks
        if not looking[0]:
            looking[0] = True
            readers.check()
            looking[0] = False
            looks += 1
        return False

    disk.refuses = look
    before = markers(log)
    clean(log, readers)
    disk.refuses = lambda name: False
    assert looks > 10
    assert readers.swaps == 1
    assert markers(log) < before
    assert not len(readers.told)
    assert not len(log.producers.stability)
    readers.check()


@pytest.mark.parametrize("keep", [Everything(), Keep()], ids=["a kill", "a loss of power"])
def test_a_stop_between_any_two_steps_of_a_cleaning(keep: Keep) -> None:
    disk, step, died, took = FaultyDisk(), 0, True, set()
    due(disk).close()
    while died:
        dying = disk.copy()
        log = Log.open(FOLDER, SETTINGS, disk=dying)
        dying.dies_at = dying.operations + step
        try:
            clean(log)
            dying.dies_at, died = None, False
        except PowerLoss:
            dying.crash(keep)
            log = Log.open(FOLDER, SETTINGS, disk=dying)
        check(log, log.producers.stability)
        took.add((markers(log), len(log.producers.stability)))
        for _ in range(2):
            clean(log)
            check(log, log.producers.stability)
        assert not len(log.producers.stability)
        step += 1
    assert step > 10
    assert (2, 1) in took, "the marker is there, and what it ended is known"
    assert (2, 0) in took, "the marker is there, and ends nothing any more"
    assert (1, 0) in took, "the marker is gone"
    assert len(took) == 3


def test_a_disk_that_fails_between_any_two_steps_of_a_cleaning() -> None:
    disk, step, failed = FaultyDisk(), 0, True
    due(disk).close()
    while failed:
        failing = disk.copy()
        log = Log.open(FOLDER, SETTINGS, disk=failing)
        readers, at = Readers(log), failing.operations + step
        failing.refuses = lambda name, failing=failing, at=at: failing.operations > at  # type: ignore[misc]
        try:
            clean(log, readers)
            failed = False
        except StorageError:
            pass
        failing.refuses = lambda name: False
        readers.check()
        with suppress(StorageError):
            log.close()
        log = Log.open(FOLDER, SETTINGS, disk=failing)
        check(log, log.producers.stability)
        step += 1
    assert step > 10


def test_what_an_older_version_forgot_to_forget_is_made_good() -> None:
    """The older version swapped the marker out first. A kill then left a log that knows of an aborted transaction
    without an end."""
    disk = FaultyDisk()
    log = due(disk)
    known = log.producers.stability.copy()
    clean(log)
    log.producers.stability = known
    log.checkpoint()
    log.close()
    log = Log.open(FOLDER, SETTINGS, disk=disk)
    with pytest.raises(AssertionError):
        check(log, log.producers.stability)
    clean(log)
    check(log, log.producers.stability)


@pytest.mark.parametrize("gone", [1, 2])
def test_retention_overtakes_a_cleaning_of_several_segments(gone: int) -> None:
    """One cleaning makes one segment of four. Meanwhile the first ones go, before all of them were read or after. What
    is left still has an aborted event, so the transaction must not be forgotten."""
    log = Log.open(FOLDER, replace(SETTINGS, delete=True, segment_bytes=100_000), disk=FaultyDisk())
    for number in range(3):
        append(log, b"first-%d" % number)
        log.roll()
    append(log, *sorted(ACCOUNTS))
    append(log, b"aborted", producer=7, sequence=0)
    end(log, 7, commit=False)
    log.roll()
    readers, start = Readers(log), log.segments[gone].base_offset

    def overtaken(candidates: list[Candidate]) -> list[bool]:
        log.delete_before(start)
        return survives(candidates)

    result = log.clean(overtaken, log.segments[-1].base_offset, NOW, readers)
    readers.told.drop(result.markers)
    assert log.start_offset == start
    readers.check()
    check(log, log.producers.stability)
    assert len(log.segments) == 2, "what was left was cleaned"
