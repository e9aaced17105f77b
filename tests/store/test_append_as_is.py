"""A log that takes batches as another broker has them, with their bytes, holes, epochs and producers; and what it
refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from krappy.core.stability import marker
from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.records.batch import BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store import checkpoint as checkpoints
from krappy.store.log import Log
from krappy.store.writing import HOLES_AHEAD
from tests.store.compacted import CONFIG, Table
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, SMALL, filled, forget_checkpoint, made, offsets, opened, rows

Batch = tuple[BatchHeader, bytes]
KEEPS = [Keep(), Everything(), *map(Chance, range(6))]


def placed(offset: int, *values: bytes | None, epoch: int = 0, data: bytes = b"") -> Batch:
    """A batch of another log."""
    header, data = (batch.check(data), data) if data else made(*values)
    data = batch.stamp(header, offset, epoch) + data[batch.STAMPED :]
    return batch.check(data), data


def whole(log: Log) -> bytes:
    """Every byte up to the log's end, as a follower reads: without a limit, and whether synced or not."""
    found, at = [], log.start_offset
    while (span := log.read_span(at, 300)).data:
        found.append(bytes(span.data))
        at = span.next_offset
    assert at == log.end_offset
    return b"".join(found)


def batches(log: Log) -> list[Batch]:
    return [(header, bytes(data)) for header, data in batch.split(whole(log))]


def holed(chance: random.Random, count: int, start: int = 0) -> list[Batch]:
    """Batches with holes between some of them, and before the first."""
    found, offset, epoch = [], start, 0
    for number in range(count):
        offset += chance.choice([0, 0, 3, 100])
        epoch += chance.choice([0, 0, 0, 1])
        found.append(placed(offset, *[b"%d" % number] * chance.randint(1, 3), epoch=epoch))
        offset = found[-1][0].next_offset
    return found


def follow(log: Log, some: Sequence[Batch], at_once: int = 3) -> None:
    for at in range(0, len(some), at_once):
        log.append_as_is(some[at : at + at_once], 5000)


def test_the_bytes_of_another_log_are_taken_as_they_are(tmp_path: Path) -> None:
    table = Table(tmp_path / "leader")
    table.fill(200, 12)
    table.clean()
    leader = table.log
    follower = opened(tmp_path / "follower")
    follow(follower, batches(leader))
    assert whole(follower) == whole(leader)
    assert follower.end_offset == leader.end_offset
    assert [list(found) for _, found in follower.scrub() if found] == []
    follower.close()
    again = opened(tmp_path / "follower")
    assert again.recovery.clean
    assert whole(again) == whole(leader)
    again.close()
    leader.close()


def test_what_is_not_synced_can_be_read_up_to_the_end() -> None:
    """Followers read events that are not committed yet."""
    log = opened(FOLDER, disk=FaultyDisk())
    log.append_as_is([placed(7, b"a"), placed(9, b"b", b"c")], 1)
    assert log.synced_offset == 0
    assert offsets(rows(log)) == [7, 9, 10]
    assert offsets(rows(log, 8)) == [9, 10]
    assert log.read_span(11, 100).data == b""
    assert sum(size for _, _, size in log.locate(0, 10_000)) == log.size


def test_epochs_producers_and_transactions_are_learnt() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    mine = batch.encode(
        None, [b"x"], timestamps=1, producer_id=7, producer_epoch=2, base_sequence=4, transactional=True
    )
    log.append_as_is([placed(3, b"a", epoch=2), placed(10, epoch=-1, data=mine), placed(11, b"b", epoch=5)], 9000)
    log.append_as_is([placed(20, epoch=5, data=marker(7, 2, False, 1)), placed(30, epoch=6, data=mine)], 9000)
    for _ in range(2):
        assert log.epochs.kept(0, log.end_offset) == ((2, 3), (5, 11), (6, 30))
        state = log.producers.get(7)
        assert state is not None
        assert (state.epoch, [sent.base_offset for sent in state.sent]) == (2, [10, 30])
        assert [each[:3] for each in log.producers.stability] == [(7, 10, 20)]
        assert log.producers.stability.open == {7: 30}
        disk.crash(Everything())
        log = opened(FOLDER, disk=disk)


def test_an_epoch_that_was_led_without_events_does_not_stand_in_the_way() -> None:
    log = opened(FOLDER, disk=FaultyDisk())
    log.append_as_is([placed(0, b"a", epoch=3)], 1)
    log.epochs.lead(5, log.end_offset)
    log.append_as_is([placed(4, b"of one whom this one had never heard", epoch=4)], 1)
    assert log.epochs.kept(0, log.end_offset) == ((3, 0), (4, 4))


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ([placed(11, b"x", epoch=4)], "where 12 comes next"),
        ([placed(12, b"x", epoch=3)], "leader epoch is 3"),
        ([placed(12, b"x", epoch=5), placed(13, b"y", epoch=4)], "leader epoch is 4"),
        ([placed(12, b"x", b"y", epoch=4), placed(13, b"z", epoch=4)], "where 14 comes next"),
        ([placed(12, b"x", epoch=4), placed(14 + 2**31, b"y", epoch=4)], "too far"),
    ],
)
def test_what_does_not_follow_is_refused_whole(refused: list[Batch], why: str) -> None:
    log = opened(FOLDER, disk=FaultyDisk())
    log.append_as_is([placed(10, b"a", b"b", epoch=4)], 1)
    before = whole(log), log.epochs.kept(0, 99), log.size
    with pytest.raises(ValueError, match=why):
        log.append_as_is(refused, 1)
    assert (whole(log), log.epochs.kept(0, 99), log.size) == before
    assert log.append_as_is([placed(12, b"x", epoch=4)], 1) == 13


def test_a_header_that_is_not_its_batch_s_is_refused() -> None:
    log = opened(FOLDER, disk=FaultyDisk())
    header, data = placed(0, b"a")
    with pytest.raises(CorruptBatch):
        log.append_as_is([placed(0, b"b"), (header._replace(base_offset=1), data + b"x")], 1)
    assert (log.size, log.end_offset) == (0, 0)
    assert log.append_as_is([], 1) == 0


def test_a_full_disk_changes_nothing() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    follow(log, holed(random.Random(1), 10))
    before = whole(log), log.epochs.kept(0, 10**6), log.producers.copy()
    far = placed(log.end_offset + 5 + HOLES_AHEAD, b"x" * 900, epoch=99)
    for room in range(0, 10_000, 97):
        disk.room = room
        try:
            log.append_as_is([far], 1)
        except StorageError:
            assert (whole(log), log.epochs.kept(0, 10**6), log.producers) == before
        else:
            break
    assert room > 1000
    assert log.end_offset == far[0].next_offset


def test_holes_are_told_of_before_they_are_written_and_not_one_by_one() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    log.append_as_is([placed(0, b"a")], 1)
    before = disk.log.count("rename checkpoint.tmp checkpoint")
    for number in range(1, 100):
        log.append_as_is([placed(number * 5, b"x")], 1)
    assert disk.log.count("rename checkpoint.tmp checkpoint") == before + 1
    assert checkpoints.load(disk, FOLDER).checkpoint.sparse > log.end_offset


def test_a_log_written_by_both_is_dense_again_where_it_led() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    follow(log, holed(random.Random(1), 40))
    log.append_as_is([placed(log.end_offset + HOLES_AHEAD * 2, *[b"x"] * 3, epoch=50)], 1)
    for number in range(20):
        log.append([made(b"%d" % number * 30)], 51, 1)
    expected = whole(log)
    for keep in (Everything(), None):
        log.sync()
        disk.crash(keep)
        log = opened(FOLDER, disk=disk)
        assert not log.recovery.lost_offsets
        assert not log.recovery.cut_bytes
        assert whole(log) == expected
    log.truncate(log.end_offset - 1)
    log.roll()
    assert log._active.dense  # nothing that is written from here on was announced as having holes
    assert not next(iter(log._segments)).dense


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("config", [SMALL, TopicConfig()], ids=["many segments", "one"])
def test_holes_are_no_damage_without_a_checkpoint(tmp_path: Path, clean: bool, config: TopicConfig) -> None:
    log = opened(tmp_path, config)
    follow(log, holed(random.Random(3), 60))
    expected = whole(log)
    if clean:
        log.close()
    forget_checkpoint(tmp_path)
    for _ in range(2):
        log = opened(tmp_path, config)
        assert not log.recovery.cut_bytes
        assert whole(log) == expected
        assert log.epochs.at(log.end_offset - 1) >= 0
    log.append_as_is([placed(log.end_offset + 3, b"x", epoch=99)], 1)
    log.close()


def damaged(seed: int) -> tuple[FaultyDisk, list[Batch], Batch]:
    """A disk with a log with holes, its batches, and the one of them, not the last, that was damaged; all is synced."""
    disk = FaultyDisk()
    log = opened(FOLDER, TopicConfig(), disk)
    some = [placed(9, b"behind a hole")]
    follow(log, some)
    some += holed(random.Random(seed), 12, start=10)
    follow(log, some[1:])
    log.sync()
    hit = random.Random(seed).choice(some[1:-1])
    inode = disk.names_now[log._active.path()]
    inode.data[inode.data.index(hit[1]) + 50] ^= 1
    inode.synced = bytes(inode.data)
    return disk, some, hit


@pytest.mark.parametrize("seed", range(40))
def test_damage_between_holes_takes_nothing_else(seed: int) -> None:
    """No power was lost: what is whole behind the damage stays, with holes or without."""
    disk, some, hit = damaged(seed)
    disk.crash(Everything())
    log = opened(FOLDER, disk=disk)
    assert log.recovery.lost_offsets
    assert [each for each in batches(log) if each[0].count] == [each for each in some if each != hit]
    assert log.end_offset == some[-1][0].next_offset


@pytest.mark.parametrize("seed", range(40))
def test_offsets_behind_damage_between_holes_are_not_given_again(seed: int) -> None:
    disk, some, hit = damaged(seed)
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert [each for each in batches(log) if each[0].count] == some[: some.index(hit)]
    assert log.end_offset == some[-1][0].next_offset


@pytest.mark.parametrize("keep", KEEPS)
def test_a_loss_at_any_step_leaves_the_batches_up_to_one_of_them(keep: Keep) -> None:
    first, then = holed(random.Random(1), 6), holed(random.Random(2), 20, start=500 + HOLES_AHEAD * 2)
    then = [placed(header.base_offset, epoch=9, data=data) for header, data in then]  # they are in several segments
    for step in range(100):
        disk = FaultyDisk()
        log = opened(FOLDER, disk=disk)
        follow(log, first)
        log.sync()
        disk.dies_at = disk.operations + step
        try:
            log.append_as_is(then, 1)
            log.sync()
        except PowerLoss:
            disk.crash(keep)
        else:
            disk.dies_at = None
            break
        log = opened(FOLDER, disk=disk)
        found = [each for each in batches(log) if each[0].count]
        assert found == [*first, *then][: len(found)]
        assert len(found) >= len(first)
        if isinstance(keep, Everything):
            assert not log.recovery.lost_offsets
    assert step > 10


def test_a_log_with_holes_is_compacted_and_read_through() -> None:
    disk = FaultyDisk()
    log = Log.open(FOLDER, CONFIG, disk=disk)
    some = holed(random.Random(4), 60)
    follow(log, some)
    log.roll()
    held = [row.offset for row in rows(log)]
    log.clean(lambda found: [offset % 2 == 0 for _, offset, _, _ in found], log.end_offset, 0)
    assert [row.offset for row in rows(log)] == [offset for offset in held if offset % 2 == 0]
    assert all(segment.proof is not None for segment in log._segments.closed)
    log.append_as_is([placed(log.end_offset + 4, b"x", epoch=99)], 1)
    disk.crash(Everything())
    log = Log.open(FOLDER, CONFIG, disk=disk)
    assert log.recovery.clean
    assert [row.offset for row in rows(log)][-1] == log.end_offset - 1


def test_the_density_rule_is_kept_for_a_leader() -> None:
    """A log that has only led expects no holes: a wrong base offset is damage, as always."""
    disk = FaultyDisk()
    log = filled(FOLDER, 40, disk=disk)
    log.append_as_is([placed(120, b"follows right on", epoch=3)], 1)
    log.checkpoint()
    assert checkpoints.load(disk, FOLDER).checkpoint.sparse == 0
