"""A disk that fills up or fails: nothing is done by half, and nothing is promised that is not true."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from krappy.errors import CorruptBatch, OffsetOutOfRange, StorageError
from krappy.settings.topic import TopicConfig
from krappy.store.disk import Disk, File
from krappy.store.log import Log
from krappy.store.pool import POOL
from tests.store.faulty_disk import Everything, FaultyDisk, FaultyFile
from tests.store.logs import FOLDER, SMALL, filled, log_files, made, offsets, opened, rows


def test_a_disk_that_is_full_at_every_byte_of_an_append() -> None:
    """It is all or nothing, and the log goes on as if the append had never been tried."""
    several = [made(b"%d" % number, b"x" * 40) for number in range(6)]  # they go over several segments
    size = sum(len(data) for _, data in several)
    for room in range(size):
        disk = FaultyDisk()
        log = filled(FOLDER, 5, disk=disk)
        log.sync()
        infos, names = log.segments, disk.names(FOLDER)
        disk.room = room
        with pytest.raises(StorageError):
            log.append(several, 0, 1)
        assert log.end_offset == 15
        assert log.segments == infos
        assert {name: size for name, (size, _) in disk.names(FOLDER).items()} == {
            name: size for name, (size, _) in names.items()
        }
        assert offsets(rows(log)) == list(range(15))
        assert log.read(15, 100) == b""
        disk.room = None
        if room % 2:
            disk.crash(Everything())
            log = opened(FOLDER, disk=disk)
            assert log.recovery.cut_bytes == 0
        assert log.append(several, 0, 1) == 15
        assert log.sync() == 27
        assert offsets(rows(log)) == list(range(27))


class NoRemovals(Everything):
    """The power goes. Of the folder's changes since its last sync the first is on disk, and the others are not."""

    def __init__(self) -> None:
        self._first = True

    def name(self) -> bool:
        first, self._first = self._first, False
        return first


def test_a_refused_append_does_not_come_back_once_there_was_a_sync() -> None:
    for synced in (False, True):
        disk = FaultyDisk()
        log = filled(FOLDER, 5, disk=disk)
        log.sync()
        disk.room = 1500
        with pytest.raises(StorageError):
            log.append([made(b"x" * 900), made(b"y" * 900)], 0, 1)
        disk.room = None
        if synced:
            log.sync()
        disk.crash(NoRemovals())
        assert opened(FOLDER, disk=disk).end_offset == 15 + (not synced)


def test_no_room_for_the_next_segment() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 5, disk=disk)
    disk.room = 0
    for work in (lambda: log.append([made(b"x" * 900)], 0, 1), log.roll):
        with pytest.raises(StorageError):
            work()
    assert len(log.segments) == 1
    disk.room = None
    assert log.append([made(b"x" * 900)], 0, 1) == 15
    assert len(log.segments) == 2


def test_no_room_for_an_index_is_no_failure() -> None:
    """An index is derived from its segment: the append that closes a segment succeeds without it."""
    disk = FaultyDisk()
    log = filled(FOLDER, 5, disk=disk)
    disk.refuses = lambda name: "index" in name
    for number in range(15, 60):
        assert log.append([made(b"%d" % number)], 0, 1) == number
    assert len(log.segments) > 2
    assert offsets(rows(log)) == list(range(60))
    disk.refuses = lambda name: False
    disk.crash(Everything())
    assert offsets(rows(opened(FOLDER, disk=disk))) == list(range(60))


def test_a_failed_append_that_cannot_be_taken_back_ends_appends() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 5, disk=disk)
    log.sync()
    disk.room = 50
    disk.refuses = lambda name: name.startswith("truncate")
    with pytest.raises(StorageError):
        log.append([made(b"x")], 0, 1)
    disk.room, disk.refuses = None, lambda name: False
    for _ in range(2):
        with pytest.raises(StorageError, match="can't be taken back"):
            log.append([made(b"x")], 0, 1)
    assert offsets(rows(log)) == list(range(15))
    disk.crash(Everything())
    log = opened(FOLDER, disk=disk)
    assert (log.end_offset, log.recovery.cut_bytes) == (15, 50)


def test_a_failed_sync_ends_appends_for_good() -> None:
    """The kernel may have dropped the pages and says so once only (fsyncgate): trying again proves nothing."""
    disk = FaultyDisk()
    log = filled(FOLDER, 5, disk=disk)
    log.sync()
    log.append([made(b"x")], 0, 1)
    disk.sync_fails = True
    with pytest.raises(StorageError, match="sync failed"):
        log.sync()
    disk.sync_fails = False
    for work in (lambda: log.append([made(b"x")], 0, 1), log.sync, log.checkpoint, log.roll):
        with pytest.raises(StorageError, match="sync failed"):
            work()
    assert log.synced_offset == 15
    assert offsets(rows(log, limit=15)) == list(range(15))
    log.close()
    disk.crash()
    assert opened(FOLDER, disk=disk).end_offset == 15


def test_whatever_a_sync_raises_ends_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next sync would take for stored what this one has left."""

    def fail(file: File) -> None:
        raise MemoryError

    log = filled(tmp_path / "t-0", 5)
    log.sync()
    log.append([made(b"x")], 0, 1)
    with monkeypatch.context() as failing:
        failing.setattr(File, "fdatasync", fail)
        with pytest.raises(StorageError, match="sync failed"):
            log.sync()
    with pytest.raises(StorageError, match="sync failed"):
        log.append([made(b"x")], 0, 1)
    with pytest.raises(StorageError, match="sync failed"):
        log.sync()
    assert log.synced_offset == 15
    log.close()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 5, disk=disk)
    log.checkpoint()
    log.append([made(b"x")], 0, 1)
    for refused in ("create checkpoint", "write checkpoint", "fdatasync checkpoint", "rename checkpoint"):
        disk.refuses = lambda name, refused=refused: name.startswith(refused)  # type: ignore[misc]
        with pytest.raises(StorageError):
            log.checkpoint()
        disk.refuses = lambda name: False
        assert log.append([made(b"x")], 0, 1) == log.end_offset - 1
    log.sync()
    end = log.end_offset
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert (log.end_offset, log.recovery.clean) == (end, True)


def test_the_start_does_not_move_when_it_cannot_be_noted() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 40, disk=disk)
    log.checkpoint()
    disk.refuses = lambda name: "checkpoint" in name
    with pytest.raises(StorageError):
        log.delete_before(60)
    assert log.start_offset == 0
    assert offsets(rows(log)) == list(range(120))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """RLIMIT_FSIZE: writes beyond `size` bytes fail with EFBIG, on the real disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_real_disk_that_takes_no_more(tmp_path: Path) -> None:
    log = filled(tmp_path, 5, config=TopicConfig())
    log.sync()
    (file,) = log_files(tmp_path)
    size = file.stat().st_size
    several = [made(b"x" * 100), made(b"y" * 100)]
    for room in (0, 1, 15, 16, 17, 61, 100, 170, 250):
        with file_size_limit(size + room), pytest.raises(StorageError):
            log.append(several, 0, 1)
        assert file.stat().st_size == size
        assert (log.end_offset, log.size) == (15, size)
        assert offsets(rows(log)) == list(range(15))
    assert log.append(several, 0, 1) == 15
    log.sync()
    assert offsets(rows(log)) == list(range(17))
    log.close()
    log = opened(tmp_path)
    assert log.recovery.clean
    assert offsets(rows(log)) == list(range(17))


def test_what_a_failed_sync_left_in_the_page_cache_is_not_taken_for_stored() -> None:
    """The kernel still shows it to the next process, and a sync succeeds, but no disk has it."""
    disk = FaultyDisk()
    log = filled(FOLDER, 5, disk=disk)
    log.sync()
    log.append([made(b"x" * 40)] * 3, 0, 1)
    disk.sync_fails = True
    with pytest.raises(StorageError):
        log.sync()
    disk.sync_fails = False
    disk.crash(Everything())  # the broker is started again, the machine is not
    log = opened(FOLDER, disk=disk)
    told = offsets(rows(log))
    assert told[:15] == list(range(15))
    assert log.append([made(b"new")], 0, 1) == log.sync() - 1
    told = offsets(rows(log))
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log)) == told


def failed_sync(disk: FaultyDisk, log: Log, at: int) -> None:
    """Six appends and a sync. The operation with the number `at`, and those after it, meet a disk whose syncs fail."""

    def work() -> None:
        for number in range(7):
            disk.sync_fails = number >= at
            if number < 6:
                log.append([made(b"x" * 300)], 0, 1)
            else:
                log.sync()

    with pytest.raises(StorageError):
        work()
    disk.sync_fails = False
    disk.crash(Everything())  # the broker is started again, the machine is not


@pytest.mark.parametrize("at", range(7))
def test_what_a_failed_sync_of_a_new_log_lost_is_no_damage(at: int) -> None:
    """Nobody was told that these events are stored."""
    disk = FaultyDisk()
    failed_sync(disk, Log.open(FOLDER, SMALL, disk=disk, new=True), at)
    log = opened(FOLDER, disk=disk)
    assert not log.recovery.damage
    assert log.append([made(b"new")], 0, 1) == log.sync() - 1
    told = offsets(rows(log))
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log)) == told
    assert not log.recovery.damage


@pytest.mark.parametrize("rolls", ["by size", "by age", "in one append", "when told to"])
def test_a_log_has_a_checkpoint_before_its_second_segment(rolls: str) -> None:
    """Else recovery would take the first segment for whole."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, SMALL, disk=disk, new=True)
    batch = made(b"x" * 300)
    if rolls == "in one append":
        log.append([batch] * 6, 0, 1)
    else:
        log.append([batch], 0, 1)
        assert not [name for name in disk.log if "sync" in name]
    if rolls == "by size":
        log.append([batch] * 2, 0, 1)
    elif rolls == "by age":
        log.append([batch], 0, 1 + SMALL.segment_ms)
    elif rolls == "when told to":
        log.roll()
    assert len(log.segments) > 1
    second = disk.log.index(f"create {log.segments[1].base_offset:020}.log")
    assert [name for name in disk.log[:second] if name.startswith("rename checkpoint")]


def test_closed_segments_of_a_log_without_a_checkpoint_are_read_from_the_disk() -> None:
    """They may be only in the page cache."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, SMALL, disk=disk, new=True)
    log._first = False  # earlier versions wrote no checkpoint before the second segment
    failed_sync(disk, log, 6)
    lost = log.segments[0].next_offset
    log = opened(FOLDER, disk=disk)
    assert log.recovery.damage
    with pytest.raises(CorruptBatch):
        rows(log)
    assert log.append([made(b"new")], 0, 1) == log.sync() - 1
    told = offsets(rows(log, lost))
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log, lost)) == told == list(range(lost, 7))


@pytest.mark.parametrize("deleted", [False, True])
def test_a_segment_whose_file_is_gone_is_damage(deleted: bool) -> None:
    """Unless the log itself was deleted meanwhile."""
    disk = FaultyDisk()
    filled(FOLDER, 12, disk=disk).close()
    log = opened(FOLDER, disk=disk)
    lost = log.segments[0].base_offset
    disk.unlink(FOLDER / f"{lost:020}.log")
    POOL.discard(next(iter(log._segments)))
    if deleted:
        log.abandon()
    with pytest.raises(StorageError):
        log.verify(lost, 1000)
    assert (f"{lost:020}.log" in log.damage) == (not deleted)


@pytest.mark.parametrize("cut", [False, True])
def test_a_segment_that_goes_while_it_is_opened_is_no_damage(cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes it, or the log is cut."""
    disk = FaultyDisk()
    log = filled(FOLDER, 48, disk=disk)
    bases, open_file, opened_files = [segment.base_offset for segment in log.segments], disk.open, []

    def opening(path: Path, **how: bool) -> FaultyFile:
        opened_files.append(path)
        if len(opened_files) == 1:
            log.truncate(bases[1]) if cut else log.delete_before(bases[3])
        return open_file(path, **how)

    monkeypatch.setattr(disk, "open", opening)
    for segment in log._segments.closed:
        POOL.discard(segment)
    with pytest.raises(OffsetOutOfRange):
        log.verify(bases[2], 1000)
    assert opened_files[0] == FOLDER / f"{bases[2]:020}.log"
    assert not log.damage


def test_segments_are_not_damaged_while_the_folder_of_all_logs_is_away(tmp_path: Path) -> None:
    """The folder was unmounted, say, and may come back as it was."""
    topics, away = tmp_path / "topics", tmp_path / "away"
    log = filled(topics / "t-0", 12)
    topics.rename(away)
    POOL.discard(next(iter(log._segments)))
    with pytest.raises(StorageError):
        log.verify(0, 1000)
    assert not log.damage
    away.rename(topics)
    assert log.verify(0, 1000).data
    log.close()


@pytest.mark.parametrize("new", [False, True])
def test_a_sync_that_finds_the_folder_away_has_lost_nothing(tmp_path: Path, new: bool) -> None:
    """Once the folder is back, the next sync covers what that one did not. `new`: a segment was begun meanwhile."""
    folder, away = tmp_path / "t-0", tmp_path / "away"
    log = filled(folder, 1, config=SMALL)
    log.sync()
    if not new:
        log.append([made(b"k", b"v")], 0, 1)
        log._unsynced._files = dict.fromkeys(log._unsynced._files)  # as when there are many: they are not held open
    else:
        while not log._unsynced.names:
            log.append([made(b"k", b"v" * 40)], 0, 1)
    folder.rename(away)
    with pytest.raises(StorageError, match="not synced yet"):
        log.sync()
    assert not log.broken
    away.rename(folder)
    assert log.sync() == log.end_offset
    log.append([made(b"k", b"v")], 0, 1)
    assert log.sync() == log.end_offset
    log.close()


def test_a_folder_that_comes_back_in_the_middle_of_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was not found while the folder was away was not removed: nothing counts as synced that was not
    synced."""
    folder, away = tmp_path / "t-0", tmp_path / "away"
    log = filled(folder, 1, config=SMALL)
    log.sync()
    log.append([made(b"k", b"v")], 0, 1)
    waiting = {*log._unsynced._files}
    log._unsynced._files = dict.fromkeys(waiting)  # as when there are many: they are not held open
    synced: list[Path] = []
    fsync_dir, fdatasync = Disk.fsync_dir, File.fdatasync

    def back(disk: Disk, of: Path) -> None:
        if away.exists():
            away.rename(folder)
        fsync_dir(disk, of)

    def note(file: File) -> None:
        synced.append(file.path)
        fdatasync(file)

    monkeypatch.setattr(Disk, "fsync_dir", back)
    monkeypatch.setattr(File, "fdatasync", note)
    folder.rename(away)
    assert log.sync() == log.end_offset
    assert waiting <= {*synced}
    log.close()
