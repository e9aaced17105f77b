"""A log is made without a sync. What is acknowledged in it is on disk all the same, whatever happens
between two steps."""

from __future__ import annotations

import pytest

from krappy.store.log import Log
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, SMALL, made

KEPT = [Everything(), Keep(), *map(Chance, range(12))]


@pytest.mark.parametrize("new", [True, False], ids=["unsynced", "synced"])
@pytest.mark.parametrize("keep", KEPT, ids=["a kill", "a loss of power", *map(str, range(12))])
def test_what_was_synced_in_a_new_log_is_there_after_a_stop_at_any_step(keep: Keep, new: bool) -> None:
    step, died = 0, True
    while died:
        disk, acknowledged = FaultyDisk(), 0
        disk.dies_at = step
        try:
            log = Log.open(FOLDER, SMALL, disk=disk, new=new)
            for _ in range(3):
                log.append([made(b"one", b"two")], 0, 1)
                acknowledged = log.sync()
            log.checkpoint()
            died = False
        except PowerLoss:
            pass
        disk.crash(keep)
        log = Log.open(FOLDER, SMALL, disk=disk, new=bool(step % 2))
        assert log.end_offset >= acknowledged
        assert log.start_offset == 0
        assert log.recovery.lost_offsets == 0
        assert not log.recovery.damage
        log.append([made(b"three")], 0, 1)
        log.sync()
        log.close()
        step += 1
    assert step > 8


def test_making_a_log_does_not_wait_for_the_disk() -> None:
    disk = FaultyDisk()
    disk.mkdir(FOLDER)
    before = len(disk.log)
    log = Log.open(FOLDER, SMALL, disk=disk, new=True)
    assert not [name for name in disk.log[before:] if "sync" in name]
    log.close()
    again = Log.open(FOLDER, SMALL, disk=disk)
    assert again.recovery.clean
    again.close()


def test_a_new_log_settles_once() -> None:
    """Its first events make it write a checkpoint. When the broker has it do so after a while, nothing changes any
    more."""
    for events in (False, True):
        disk = FaultyDisk()
        disk.mkdir(FOLDER)
        log = Log.open(FOLDER, SMALL, disk=disk, new=True)
        if events:
            log.append([made(b"one")], 0, 1)
            log.sync()
        before = len(disk.log)
        log.settle()
        assert (len(disk.log) > before) is not events
        before = len(disk.log)
        log.settle()
        assert len(disk.log) == before
        log.close()
