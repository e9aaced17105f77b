"""A log that is cut: where it ends, what is known then, what a crash at any step leaves, and what readers beside it
see."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from krappy.core.stability import marker
from krappy.errors import CorruptBatch, OffsetOutOfRange, StorageError
from krappy.records import batch
from krappy.store import checkpoint as checkpoints
from krappy.store.cleaner import Candidate
from krappy.store.disk import Disk
from krappy.store.format import SUMS
from krappy.store.log import Log
from krappy.store.unsynced import Unsynced
from tests.long import some
from tests.store.compacted import Table
from tests.store.faulty_disk import Everything, FaultyDisk, FaultyFile, Keep, PowerLoss
from tests.store.logs import FOLDER, SMALL, filled, forget_checkpoint, log_files, made, offsets, opened, rows
from tests.store.test_append_as_is import KEEPS, Batch, follow, holed, placed, whole


def check(log: Log, end: int, start: int = 0) -> None:
    """Asserts that a log of `filled` ends at `end` and is sound."""
    assert (log.start_offset, log.end_offset, log.synced_offset) == (start, end, end)
    assert offsets(rows(log)) == list(range(start, end))
    assert [found for _, found in log.scrub() if found] == []
    assert [info.next_offset for info in log.segments[:-1]] == [info.base_offset for info in log.segments[1:]]
    assert log.find_timestamp(1000 + end) is None
    assert log.find_latest() == ((end - 1, 999 + end) if end > start else None)
    with pytest.raises(OffsetOutOfRange):
        log.read(end + 1, 100)


def test_it_may_be_cut_anywhere(tmp_path: Path) -> None:
    for offset in range(63):
        folder = tmp_path / str(offset)
        log = filled(folder, 20)
        end = min(offset // 3 * 3, 60)  # a batch that is not whole below the offset goes
        assert log.truncate(offset) == end
        check(log, end)
        assert len(log_files(folder)) == len(log.segments)
        log.append([made(*[b"%04d" % number for number in range(end, end + 3)], at=1000 + end)], 0, 1)
        log.close()
        log = opened(folder)
        assert log.recovery.clean
        assert log.recovery.checked_bytes == 0
        check(log, end + 3)
        log.close()


def test_an_empty_log_and_one_that_is_cut_to_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert [log.truncate(0), log.truncate(5)] == [0, 0]
    log = Log.open(tmp_path / "later", SMALL, start_offset_hint=70)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(69)
    log.append([made(b"a", b"b")], 0, 1)
    assert log.truncate(71) == 70
    assert (log.start_offset, log.end_offset, log.size) == (70, 70, 0)
    log.close()
    log = opened(tmp_path / "later")
    assert (log.start_offset, log.end_offset, log.recovery.clean) == (70, 70, True)
    log.close()


def test_it_never_ends_before_its_start(tmp_path: Path) -> None:
    log = filled(tmp_path, 20)
    log.delete_before(40)  # it is within the batch from 39 to 41
    before = whole(log)
    for offset in (-1, 0, 38, 39, 40, 41):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.truncate(offset)
        assert caught.value.details["start"] == 40
    assert whole(log) == before
    assert log.truncate(42) == 42
    assert offsets(rows(log)) == [40, 41]
    log.delete_before(42)
    assert log.truncate(42) == 42
    log.close()
    log = opened(tmp_path)
    assert (log.start_offset, log.end_offset) == (42, 42)
    log.close()


def test_a_log_of_control_batches_alone(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(10):
        data = marker(5, 0, bool(number % 2), number)
        log.append([(batch.check(data), data)], 0, 1)
    assert log.truncate(4) == 4
    assert len(batch.read_header(whole(log))) == 13
    assert log.find_latest() == (3, 3)
    log.close()
    log = opened(tmp_path)
    assert (log.end_offset, log.recovery.clean) == (4, True)
    log.close()


def test_within_a_hole_it_ends_before_the_hole() -> None:
    log = opened(FOLDER, disk=FaultyDisk())
    log.append_as_is([placed(5, b"a"), placed(20, b"b"), placed(30, b"c")], 1)
    assert log.truncate(29) == 21
    assert log.truncate(19) == 6
    assert log.truncate(3) == 0
    assert log.append_as_is([placed(40, b"d")], 1) == 41


def test_epochs_that_began_there_are_forgotten() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    for epoch in (1, 4, 6):
        log.epochs.lead(epoch, log.end_offset)
        log.append([made(b"a", b"b")], epoch, 1)
    log.epochs.lead(9, log.end_offset)
    shared = log.epochs  # others hold this object, too
    assert log.truncate(7) == 6
    assert shared.end_of(9, 6) is None
    assert shared.kept(0, 99) == ((1, 0), (4, 2), (6, 4))
    assert log.truncate(3) == 2
    disk.crash()
    assert opened(FOLDER, disk=disk).epochs.kept(0, 99) == shared.kept(0, 99) == ((1, 0),)
    assert log.epochs is shared


def test_after_compaction_with_sums(tmp_path: Path) -> None:
    for number in range(0, 200, 7):
        table = Table(tmp_path / str(number))
        table.fill(80, 10)
        table.clean()
        log = table.log
        assert any(segment.proof is not None for segment in log._segments)
        offset = min(number, table.end)
        left = [row for row in table.rows if row.offset < offset]
        end = log.truncate(offset)
        assert end <= offset
        assert rows(log) == [row for row in left if row.offset < end]
        assert log._active.proof is None
        assert not log._active.path(SUMS).exists()
        assert all(segment.path(SUMS).exists() for segment in log._segments.closed if segment.proof is not None)
        assert log.clean_upto <= end
        log.append([made(b"more", key=b"k1")], 0, 1)
        log.close()
        log = opened(log.folder)
        assert log.recovery.clean, str(log.recovery)
        assert rows(log)[:-1] == [row for row in left if row.offset < end]
        assert [found for _, found in log.scrub() if found] == []
        log.close()


def test_damage_before_the_end_refuses_and_behind_it_goes() -> None:
    for hit, works in ((100, True), (20, False)):
        disk = FaultyDisk()
        log = filled(FOLDER, 40, disk=disk, config=replace(SMALL, segment_bytes=100_000))
        position, _ = log._active.find(hit)
        disk.names_now[log._active.path()].data[position + 16] = 77  # its magic
        if works:
            assert log.truncate(60) == 60
            check(log, 60)
        else:
            with pytest.raises(CorruptBatch):
                log.truncate(60)
            assert (log.end_offset, log.broken) == (120, "")
            assert log.append([made(b"x")], 0, 1) == 120


# ---------------------------------------------------------------- producers


def sent(log: Log, producer: int, sequence: int, epoch: int = 0) -> None:
    log.append([made(b"x", producer=producer, epoch=epoch, sequence=sequence)], 0, 77)


def test_a_producer_is_known_by_what_it_had_sent_before(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(3):
        sent(log, 1, number)  # 0 1 2
    sent(log, 2, 0)  # 3
    sent(log, 3, 0)  # 4
    for number in range(7):
        sent(log, 1, number, epoch=1)  # 5 to 11
    sent(log, 4, 0)  # 12
    sent(log, 3, 1)  # 13
    log.checkpoint()
    assert log.truncate(5) == 5
    for _ in range(2):
        one, three = log.producers.get(1), log.producers.get(3)
        assert one is not None
        assert three is not None
        assert (one.epoch, [each.base_offset for each in one.sent]) == (0, [0, 1, 2])
        assert [each.base_offset for each in three.sent] == [4]
        assert log.producers.get(2) is not None
        assert log.producers.get(4) is None
        assert log.producers.check(made(b"x", producer=1, sequence=2)[0]) == 2
        log.close()
        log = opened(tmp_path)
    log.close()


def test_no_more_is_read_than_since_the_high_watermark(tmp_path: Path) -> None:
    """The checkpoint at the log's end keeps what the one at the high watermark knew, over a start, too."""
    log = filled(tmp_path, 40)
    sent(log, 1, 0)  # 120
    log.high_watermark = 121
    log.checkpoint()
    for epoch in range(1, 4):
        sent(log, 1, 0, epoch)
        sent(log, 2, 0, epoch)
        log.checkpoint()
    saved = checkpoints.load(log._disk, tmp_path).checkpoint
    assert saved.earlier is not None
    assert (saved.earlier.offset, saved.recovery, saved.high_watermark) == (121, 127, 121)
    log.close()
    log = opened(tmp_path)
    assert log.high_watermark == 121
    oldest = next(iter(log._segments))
    oldest.path().write_bytes(b"\xff" * oldest.size)  # what is not read may be damaged
    assert log.truncate(121) == 121
    one = log.producers.get(1)
    assert one is not None
    assert (one.epoch, one.sent[0].base_offset, log.producers.get(2)) == (0, 120, None)
    log.close()


def test_what_was_cleaned_is_not_read_again_for_it() -> None:
    """A marker that a cleaning has taken since then would leave its transaction open for ever."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, replace(SMALL, delete_retention_ms=0), disk=disk)
    tx = batch.encode(
        [b"k"], [b"x"], timestamps=1, producer_id=3, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append([(batch.check(tx), tx)], 0, 1)
    log.high_watermark = 1
    log.checkpoint()
    end = marker(3, 0, True, 1)
    log.append([(batch.check(end), end), made(b"y")], 0, 1)
    log.checkpoint()
    log.roll()
    following = batch.encode(
        [b"k"], [b"z"], timestamps=1, producer_id=3, producer_epoch=0, base_sequence=1, transactional=True
    )
    log.append([(batch.check(following), following), made(b"w")], 0, 1)
    for now in (0, 10, 20, 30):
        log.clean(lambda some: [False] * len(some), 3, now)
    assert [header.base_offset for header, _ in batch.split(whole(log))] == [2, 3, 4]
    log.checkpoint()
    assert log.truncate(4) == 4
    assert log.producers.stability.open == {3: 3}  # that of the following transaction, not of the cleaned one


def test_what_retention_took_is_not_missed_for_it() -> None:
    """A marker that went with the oldest segments would leave its transaction open as well."""
    log = opened(FOLDER, disk=FaultyDisk())
    tx = batch.encode(
        [b"k"], [b"x"], timestamps=1, producer_id=3, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append([(batch.check(tx), tx)], 0, 1)
    log.high_watermark = 1
    log.checkpoint()
    end = marker(3, 0, True, 1)
    log.append([(batch.check(end), end)], 0, 1)
    log.checkpoint()
    log.roll()
    log.append([made(b"y", producer=3, sequence=1), made(b"z")], 0, 1)
    log.delete_before(2)
    assert log.truncate(3) == 3
    assert not log.producers.stability.open
    assert log.producers.get(3) is not None


def test_the_high_watermark_is_kept_and_bounded(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    assert log.high_watermark is None
    log.high_watermark = 300
    log.checkpoint()
    assert checkpoints.load(log._disk, tmp_path).checkpoint.high_watermark == 30
    log.high_watermark = 12
    log.close()
    log = opened(tmp_path)
    assert log.high_watermark == 12
    assert log.recovery.clean
    log.truncate(9)
    assert log.high_watermark == 9
    log.close()
    forget_checkpoint(tmp_path)
    log = opened(tmp_path)
    assert log.high_watermark is None
    log.close()


# ---------------------------------------------------------------- crashes


def lost(work: Callable[[], object], disk: FaultyDisk, step: int, keep: Keep) -> bool:
    """Does the work; at this step of the disk the power goes or the process is killed. Returns whether the work got
    that far."""
    disk.dies_at = disk.operations + step
    try:
        work()
    except PowerLoss:
        disk.crash(keep)
        return True
    disk.dies_at = None
    return False


def with_holes(disk: FaultyDisk) -> Log:
    log = Log.open(FOLDER, replace(SMALL, segment_bytes=400), disk=disk)
    follow(log, holed(random.Random(7), 30))
    return log


def led(disk: FaultyDisk) -> Log:
    return filled(FOLDER, 30, disk=disk, config=replace(SMALL, segment_bytes=400))


@pytest.mark.parametrize(("make", "again", "keep"), some([*product([led, with_holes], [None, 1, 4, 8], KEEPS)], 5))
def test_a_loss_at_any_step_leaves_all_or_nothing(
    make: Callable[[FaultyDisk], Log], again: int | None, keep: Keep
) -> None:
    """`again`: the step at which the recovery is killed as well."""
    outcomes = set()
    for step in range(200):
        disk = FaultyDisk()
        log = make(disk)
        log.sync()
        log.append([made(b"not synced yet", producer=1, sequence=0)], 99, 1)
        before, offset = whole(log), log.segments[3].base_offset + 7
        died = lost(lambda log=log, offset=offset: log.truncate(offset), disk, step, keep)  # type: ignore[misc]
        if died and again is not None:
            lost(lambda disk=disk: opened(FOLDER, disk=disk), disk, again, keep)  # type: ignore[misc]
        log = opened(FOLDER, disk=disk) if died else log
        assert not log.recovery.lost_offsets or not isinstance(keep, Everything)
        after = [each for each in batch.split(before) if each[0].next_offset <= offset]
        known = b"".join(bytes(data) for _, data in after)
        found = whole(log)
        short = before[: -len(list(batch.split(before))[-1][1])]  # what was not synced may be lost
        assert found in (before, short, known)
        outcomes.add(found == known)
        if found == known:
            assert log.end_offset == after[-1][0].next_offset
            assert log.producers.get(1) is None
            assert log.epochs.at(log.end_offset) == max(header.leader_epoch for header, _ in after)
        first = log.append([made(b"goes on")], 100, 1)
        log.sync()
        found = whole(log)
        disk.crash()
        log = opened(FOLDER, disk=disk)
        assert (whole(log), log.end_offset) == (found, first + 1)
        assert not log.recovery.lost_offsets
        if not died:
            break
    assert step > 15
    assert outcomes == {True, False}


@pytest.mark.parametrize("again", [True, False])
def test_a_disk_that_refuses_any_step(again: bool) -> None:
    """Before the decision nothing is changed. After it the log takes no more appends, and the next start finishes the
    cut."""
    seen = set()
    for step in range(100):
        disk = FaultyDisk()
        log = led(disk)
        log.sync()
        before, count = whole(log), disk.operations + step
        disk.refuses = lambda name, disk=disk, count=count: disk.operations == count + 1  # type: ignore[misc]
        try:
            log.truncate(40)
        except StorageError:
            pass
        else:
            break
        disk.refuses = lambda name: False
        seen.add(bool(log.broken))
        if log.broken:
            with pytest.raises(StorageError):
                log.append([made(b"x")], 0, 1)
            disk.crash(Everything())
            log = opened(FOLDER, disk=disk)
            assert whole(log) in (before, before[: len(whole(log))])
        else:
            assert whole(log) == before
        if again:
            log.truncate(40)
            check(log, 39)
    assert seen == {True, False}


def test_a_start_that_cannot_note_a_finished_truncation_takes_no_appends() -> None:
    """The next start would cut these appends."""
    broken = 0
    for step in range(100):
        disk = FaultyDisk()
        log = led(disk)
        log.sync()
        if not lost(lambda log=log: log.truncate(40), disk, step, Everything()):  # type: ignore[misc]
            break
        disk.room = 0
        log = opened(FOLDER, disk=disk)
        if log.broken:
            broken += 1
            check(log, 39)
            with pytest.raises(StorageError):
                log.append([made(b"x")], 0, 1)
            disk.room = None
            disk.crash(Everything())
            log = opened(FOLDER, disk=disk)
            check(log, 39)
            assert log.append([made(b"x")], 0, 1) == 39
    assert broken


# ---------------------------------------------------------------- beside it


def test_readers_beside_it_see_the_log_before_or_after(tmp_path: Path) -> None:
    """Also where other batches come to stand at the positions that readers were about to read."""
    log = Log.open(tmp_path, replace(SMALL, segment_bytes=3000))
    stop, problems = threading.Event(), []

    def fill(generation: int) -> None:
        some: list[Batch] = []
        for number in range(40):
            at = log.end_offset + 5 if not some else some[-1][0].next_offset + generation % 4
            some.append(placed(at, b"%d %d" % (generation, number) + b"x" * (generation * 7 % 50), epoch=generation))
        log.append_as_is(some, 1)

    def read(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            try:
                at = chance.randint(log.start_offset, log.end_offset)
                data = log.read(at, 800, nowait=chance.random() < 0.3)
                generations = [row[1].split()[0] for row in _values(data)]
                if generations != sorted(generations, key=int):
                    problems.append(f"{at}: {generations}")
                log.find_timestamp(1000)
                log.find_latest()
            except (OffsetOutOfRange, BlockingIOError):
                pass
            except BaseException as error:
                problems.append(repr(error))

    fill(0)
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    for generation in range(1, 120):
        fill(generation)
        log.truncate(chance.randint(log.end_offset * 9 // 10, log.end_offset))
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    log.close()


def _values(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes]]:
    found = []
    for _, one in batch.split(data):
        columns = batch.decode(one)
        found += [(at, value or b"") for at, value in zip(columns.offsets, columns.values, strict=True)]
    return found


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [70, 300, 3000])
@pytest.mark.parametrize("new", [b"new", b"", *[b"y" * length for length in range(4, 40, 5)]])
def test_a_read_that_is_overtaken_begins_anew(monkeypatch: pytest.MonkeyPatch, at: int, size: int, new: bytes) -> None:
    """At the position of the batch that the read had found, another whole batch stands, but not the next one; or the
    middle of one."""
    disk = FaultyDisk()
    log = opened(FOLDER, replace(SMALL, index_interval_bytes=10_000), disk)
    log.append_as_is([placed(number * 5, b"old") for number in range(12)], 1)
    reads = [0]
    plain = FaultyFile.pread

    def pread(file: FaultyFile, want: int, position: int) -> bytes:
        reads[0] += 1
        if reads[0] == at:
            log.truncate(20)
            log.append_as_is([placed(number, new) for number in (24, 41, 42, 43, 44, 45, 60, 61, 62)], 1)
        return plain(file, want, position)

    monkeypatch.setattr(FaultyFile, "pread", pread)
    first = _values(log.read(40, size))[0]
    assert first == ((40, b"old") if reads[0] < at else (41, new))


def test_a_sync_that_is_overtaken_tells_of_nothing_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(FOLDER, 20, disk=FaultyDisk())
    log.sync()
    plain, cutting = Unsynced.sync, threading.Thread(target=lambda: log.truncate(30))

    def overtaken(unsynced: Unsynced, disk: Disk, folder: Path) -> None:
        plain(unsynced, disk, folder)
        if threading.current_thread() is threading.main_thread():
            cutting.join(1)

    write = checkpoints.write

    def begun(disk: Disk, folder: Path, checkpoint: checkpoints.Checkpoint) -> None:
        write(disk, folder, checkpoint)
        ready.set()
        late.wait(0.2)

    ready, late = threading.Event(), threading.Event()
    monkeypatch.setattr(checkpoints, "write", begun)
    monkeypatch.setattr(Unsynced, "sync", overtaken)
    cutting.start()
    assert ready.wait(10)
    log.sync()
    end, synced = log.end_offset, log.synced_offset
    assert synced <= end
    cutting.join()
    assert (log.end_offset, log.synced_offset) == (30, 30)


def test_beside_a_cleaning_it_waits(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(120, 10)
    log, upto = table.log, table.log.segments[-1].base_offset
    cutting = threading.Thread(target=log.truncate, args=(upto // 2,))
    asked: list[int] = []

    def survives(some: list[Candidate]) -> list[bool]:
        if not asked:
            cutting.start()
        asked.append(log.end_offset)
        return [True] * len(some)

    log.clean(survives, upto, 0)
    cutting.join()
    assert set(asked) == {table.end}
    assert log.end_offset <= upto // 2
    assert rows(log) == [row for row in table.rows if row.offset < log.end_offset]
    log.close()
