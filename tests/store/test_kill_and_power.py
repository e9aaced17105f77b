"""A kill at any step, then a loss of power during the recovery or after it: what a recovery has told stays true."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from krappy.errors import StorageError
from tests.store.compacted import CONFIG, Table
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, filled, made, offsets, opened, rows

KEEPS = [Keep(), *map(Chance, range(6))]


def dies(disk: FaultyDisk, step: int, work: Callable[[], object]) -> bool:
    """Does the work, which is killed at this step of the disk. Returns whether the work got that far."""
    disk.dies_at = disk.operations + step
    try:
        work()
    except PowerLoss:
        disk.crash(Everything())
        return True
    disk.dies_at = None
    return False


def killed(make: Callable[[], tuple[FaultyDisk, Callable[[], object]]]) -> Iterator[FaultyDisk]:
    """For each step of the work in turn, a disk on which it was killed there; and then one on which it was
    not killed."""
    for step in count():
        disk, work = make()
        died = dies(disk, step, work)
        yield disk
        if not died:
            assert step > 5
            return


def killed_twice(make: Callable[[], tuple[FaultyDisk, Callable[[], object]]], seed: int) -> Iterator[FaultyDisk]:
    """Disks on which the work was killed at one of its last steps, and the recovery after that was killed as well."""
    disk, work = make()
    before = disk.operations
    work()
    last, chance = disk.operations - before, random.Random(seed)
    for _ in range(40):
        disk, work = make()
        assert dies(disk, last - chance.randrange(1, min(last, 20)), work)
        dies(disk, chance.randrange(10), lambda disk=disk: opened(FOLDER, CONFIG, disk))  # type: ignore[misc]
        yield disk


def deleting() -> tuple[FaultyDisk, Callable[[], object]]:
    disk = FaultyDisk()
    filled(FOLDER, 20, disk=disk).close()
    return disk, lambda: opened(FOLDER, disk=disk).delete_before(40)


def cleaning() -> tuple[FaultyDisk, Callable[[], object]]:
    disk = FaultyDisk()
    table = small(disk)
    return disk, lambda: table.log.clean(table.survives(), table.log.segments[-1].base_offset, 0)


def small(disk: FaultyDisk) -> Table:
    """A table of which a cleaning makes one segment from three."""
    table = Table(disk=disk)
    table.fill(40, 3)
    table.log.config = replace(CONFIG, segment_bytes=10_000)
    table.log.checkpoint()
    return table


@pytest.mark.parametrize("keep", KEEPS)
def test_a_start_that_was_told_does_not_go_back(keep: Keep) -> None:
    """Whoever asks for the same deletion once more gets the answer that it is done, and nothing is written."""
    seen = set()
    for disk in killed(deleting):
        start = opened(FOLDER, disk=disk).start_offset
        seen.add(start)
        disk.crash(keep)
        log = opened(FOLDER, disk=disk)
        assert log.start_offset == start
        assert offsets(rows(log)) == list(range(start, 60))
    assert seen == {0, 40}


@pytest.mark.parametrize("seed", range(4))
def test_power_goes_while_a_start_finishes_a_deletion(seed: int) -> None:
    for disk in killed_twice(deleting, seed):
        disk.crash(Chance(seed))
        log = opened(FOLDER, disk=disk)
        assert log.start_offset in (0, 40)
        assert offsets(rows(log)) == list(range(log.start_offset, 60))


@pytest.mark.parametrize("seed", range(4))
def test_power_goes_while_a_start_finishes_a_cleaning(seed: int) -> None:
    table = small(FaultyDisk())
    counting = {(offset, key) for key, offset in table.latest.items()}
    for disk in killed_twice(cleaning, seed):
        disk.crash(Chance(seed))
        log = opened(FOLDER, CONFIG, disk)
        assert counting <= {(row.offset, row.key) for row in rows(log)}
        assert log.end_offset == table.end
        assert not log.recovery.lost_offsets


def test_a_kill_while_a_refused_append_is_taken_back_leaves_no_gap() -> None:
    several = [made(b"%d" % number, b"x" * 90) for number in range(20)]  # they go over several segments

    def refused() -> tuple[FaultyDisk, Callable[[], object]]:
        disk = FaultyDisk()
        log = filled(FOLDER, 5, disk=disk)
        log.checkpoint()

        def work() -> None:
            disk.room = sum(len(data) for _, data in several) - 10
            with pytest.raises(StorageError):
                log.append(several, 0, 1)

        return disk, work

    for disk in killed(refused):
        disk.room = None
        log = opened(FOLDER, disk=disk)
        assert not log.recovery.lost_offsets, str(log.recovery)
        assert log.end_offset >= 15
        assert offsets(rows(log)) == list(range(log.end_offset))
