"""The record of how far a log has been on its disk. By it an old copy of the log's folder is found, and no log that a
crash has left is ever taken for an old copy."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from krappy.errors import StorageError
from krappy.store import loss
from krappy.store.checkpoint import Checkpoint
from krappy.store.format import REACHED, REACHED_SIZE
from krappy.store.log import Log
from krappy.store.reached import Reached, ReachedFile
from tests.store.faulty_disk import Chance, Everything, FaultyDisk, FaultyFile, Keep, PowerLoss
from tests.store.logs import FOLDER, SMALL, forget_checkpoint, made

ID = b"topic id, 16 b. "
FILE = FOLDER.parent / REACHED
HALF_REMOVED = -1
KEEPS = [Keep(), Everything(), *map(Chance, range(3))]


def append(log: Log, count: int, epoch: int = 0) -> None:
    for _ in range(count):
        log.append([made(b"%04d" % log.end_offset)], epoch, 1)
        log.sync()


def opened(folder: Path, file: ReachedFile) -> Log:
    return Log.open(folder, SMALL, reached=file.of(ID, 0))


@pytest.fixture
def file(tmp_path: Path) -> ReachedFile:
    return ReachedFile(tmp_path / REACHED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("old")))


def put_back(old: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    old.rename(folder)


@pytest.mark.parametrize("closed", [False, True])
def test_an_old_copy_of_a_folder(folder: Path, file: ReachedFile, closed: bool) -> None:
    """The log's next event gets none of the offsets that others got."""
    log = opened(folder, file)
    append(log, 10)
    if closed:
        log.close()
    old = copied(folder)
    log = opened(folder, file)
    append(log, 5)
    put_back(old, folder)
    log = opened(folder, ReachedFile(folder.with_name(REACHED)))
    assert (log.recovery.lost_offsets, log.end_offset) == (5, 15)
    assert "old copy" in log.recovery.lost[0]
    assert loss.noted(folder) is not None
    log.close()
    log = opened(folder, file)
    assert log.recovery.clean, "it is told once; the note stays"
    assert loss.noted(folder) is not None


def test_a_folder_that_is_gone(folder: Path, file: ReachedFile) -> None:
    append(opened(folder, file), 3)
    shutil.rmtree(folder)
    log = opened(folder, file)
    assert (log.recovery.lost_offsets, log.end_offset) == (3, 3)


def test_an_old_copy_that_is_no_shorter(folder: Path, file: ReachedFile) -> None:
    """Since the copy, the log was cut, and events of a later leader epoch came in the place of its last ones."""
    log = opened(folder, file)
    append(log, 10, epoch=1)
    old = copied(folder)
    log.truncate(8)
    append(log, 1, epoch=2)
    put_back(old, folder)
    log = opened(folder, file)
    assert "leader epoch 1" in log.recovery.lost[0]
    assert loss.noted(folder) is not None


def test_a_folder_without_a_record_is_taken_as_it_is(folder: Path, file: ReachedFile) -> None:
    """As a folder of an earlier version, or of a backup."""
    append(Log.open(folder, SMALL), 3)
    log = opened(folder, file)
    assert log.recovery.clean
    log.close()
    assert file.of(ID, 0).offset == 3


def test_a_later_copy_is_taken_as_it_is(folder: Path, file: ReachedFile) -> None:
    log = opened(folder, file)
    append(log, 3)
    before = folder.with_name(REACHED).read_bytes()
    append(log, 3)
    folder.with_name(REACHED).write_bytes(before)
    file = ReachedFile(folder.with_name(REACHED))
    assert file.of(ID, 0).offset == 3
    assert opened(folder, file).recovery.clean


# ---------------------------------------------------------------- crashes


def life(disk: FaultyDisk, synced: list[int]) -> None:
    """All that can happen to a log. `synced`: how far it surely was on disk last."""
    file = ReachedFile(FILE, disk)
    log = Log.open(FOLDER, SMALL, disk=disk, reached=file.of(ID, 0))
    for epoch, cut in ((1, 7), (2, 4), (3, 0)):
        for _ in range(9):
            log.append([made(b"%04d" % log.end_offset)], epoch, 1)
            log.sync()
            synced[0] = log.end_offset
        file._file.fdatasync()  # as the system does at some time
        synced[0] = 0
        log.truncate(cut)
    log.append([made(b"a", b"b")], 9, 1)
    log.close()
    file._file.fdatasync()
    file.forget(ID, [0])  # as when a follower begins anew
    synced[0] = HALF_REMOVED
    log.destroy()
    disk.fsync_dir(FOLDER.parent)  # the new folder is another one, and has no file of the old one
    synced[0] = 0
    log = Log.open(FOLDER, SMALL, disk=disk, start_offset_hint=1, reached=file.of(ID, 0))
    log.append([made(b"c")], 9, 1)
    log.sync()
    log.close()
    synced[0] = 2


@pytest.mark.parametrize("keep", KEEPS)
def test_no_crash_makes_a_log_look_like_an_old_copy(keep: Keep) -> None:
    """There is a kill or a loss of power at any step. After a kill the record says how far the log surely was."""
    for step in range(KEEPS.index(keep) % 3, 2_000, 3 if isinstance(keep, Chance) else 1):
        disk, synced = FaultyDisk(), [0]
        disk.dies_at = step
        try:
            life(disk, synced)
        except PowerLoss:
            disk.crash(keep)
        else:
            assert step > 200
            break
        for _ in range(0 if synced[0] == HALF_REMOVED else 2):
            record = ReachedFile(FILE, disk).of(ID, 0)
            known = record.offset
            log = Log.open(FOLDER, SMALL, disk=disk, reached=record)
            assert not log.recovery.lost, f"step {step}: {log.recovery}; the record says {known}"
            assert known <= log.end_offset
            if isinstance(keep, Everything):
                assert not synced[0] or known >= synced[0], f"step {step}"
            log.close()
            synced[0] = log.end_offset


def test_a_sync_that_is_under_way_while_the_log_is_forgotten(folder: Path, file: ReachedFile) -> None:
    log = opened(folder, file)
    append(log, 3)
    before = file.of(ID, 0)
    file.forget(ID, [0])
    append(log, 1)
    before.note(9, 1)
    assert file.of(ID, 0).offset == 0
    assert not ReachedFile(folder.with_name(REACHED)).of(ID, 0).offset


class DuringTheCut(FaultyDisk):
    """Somebody syncs the log after each step of a truncation."""

    log_: Log | None = None
    noted: set[int]

    def operation(self, name: str) -> None:
        super().operation(name)
        log, self.log_ = self.log_, None
        if log is not None:
            if name != f"write {REACHED}" and not (log._syncing.locked() or log._lock.locked()):
                log.sync()
                self.noted.add(ReachedFile(FILE, self.copy()).of(ID, 0).offset)
            self.log_ = log


def test_a_sync_while_the_log_is_cut() -> None:
    disk = DuringTheCut()
    file = ReachedFile(FILE, disk)
    log = Log.open(FOLDER, SMALL, disk=disk, reached=file.of(ID, 0))
    append(log, 9)
    disk.log_, disk.noted = log, set()
    log.truncate(4)
    disk.log_ = None
    assert disk.noted <= {0, 9}
    assert list(disk.noted) != [9]
    assert file.of(ID, 0).offset == 4


@pytest.mark.parametrize("is_new", [False, True])
def test_a_kill_before_the_sync_of_a_cleared_record(is_new: bool) -> None:
    """The next start sees the record cleared, but a loss of power would bring it back."""
    for step in range(100):
        disk = FaultyDisk()
        file = ReachedFile(FILE, disk)
        log = Log.open(FOLDER, SMALL, disk=disk, reached=file.of(ID, 0))
        append(log, 9)
        log.checkpoint()
        file._file.fdatasync()
        disk.fsync_dir(FOLDER.parent)
        disk.dies_at = disk.operations + step
        with suppress(PowerLoss):
            log.truncate(6)
        done = not disk.off
        disk.crash(Everything())
        file = ReachedFile(FILE, disk)
        log = Log.open(FOLDER, SMALL, disk=disk, reached=file.of(ID, 0))
        if is_new:
            file.forget(ID, [0])
            log.destroy()
            disk.fsync_dir(FOLDER.parent)
        else:
            log.truncate(3)
        disk.crash()
        log = Log.open(FOLDER, SMALL, disk=disk, reached=ReachedFile(FILE, disk).of(ID, 0))
        assert (log.recovery.lost, log.end_offset) == ([], 0 if is_new else 3), step
        if done:
            break
    assert step > 5


# ---------------------------------------------------------------- what batches do not tell


def test_an_epoch_that_the_cleaner_has_taken(folder: Path, file: ReachedFile) -> None:
    """After a loss of power the record may be an old one."""
    log = opened(folder, file)
    append(log, 5, epoch=1)
    append(log, 1, epoch=2)
    before = folder.with_name(REACHED).read_bytes()
    append(log, 1, epoch=3)
    log.roll()
    log.clean(lambda some: [offset != 5 for _, offset, _, _ in some], 7, 0)
    log.close()
    forget_checkpoint(folder)
    folder.with_name(REACHED).write_bytes(before)
    assert not opened(folder, ReachedFile(folder.with_name(REACHED))).recovery.lost


def test_an_epoch_that_is_damaged(folder: Path, file: ReachedFile) -> None:
    """The damage is reported, but it is no loss."""
    log = opened(folder, file)
    append(log, 5, epoch=1)
    log.checkpoint()
    size = log.size
    append(log, 1, epoch=2)
    path = folder / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[size + 12] = 0x40
    path.write_bytes(data)
    recovery = opened(folder, file).recovery
    assert recovery.damage
    assert not recovery.lost


# ---------------------------------------------------------------- an earlier version in between


def test_an_earlier_version_has_made_the_log_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier version knows no records. What it has left proves nothing, also not after a later loss of power."""
    disk = FaultyDisk()
    file = ReachedFile(FILE, disk)
    log = Log.open(FOLDER, SMALL, disk=disk, reached=file.of(ID, 0))
    append(log, 9)
    log.close()
    file._file.fdatasync()
    disk.fsync_dir(FOLDER.parent)
    with monkeypatch.context() as earlier:
        fields = Checkpoint._asdict
        earlier.setattr(
            Checkpoint, "_asdict", lambda self: {key: value for key, value in fields(self).items() if key != "noted"}
        )
        log = Log.open(FOLDER, SMALL, disk=disk)
        log.truncate(5)
        log.close()
    for end in (6, 7):
        record = ReachedFile(FILE, disk).of(ID, 0)
        log = Log.open(FOLDER, SMALL, disk=disk, reached=record)
        assert not log.recovery.lost
        append(log, 1)
        assert record.offset == log.end_offset == end
        disk.crash()


# ---------------------------------------------------------------- the file


def noted(file: ReachedFile, index: int, offset: int) -> Reached:
    found = file.of(ID, index)
    found.note(offset, 1)
    return found


def offsets(file: ReachedFile, count: int) -> list[int]:
    return [file.of(ID, index).offset for index in range(count)]


def test_records_are_read_again_and_their_room_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / REACHED
    file = ReachedFile(path)
    for index in range(4):
        noted(file, index, 10 + index)
    file.forget(ID, [1, 2, 9])
    assert offsets(ReachedFile(path), 4) == offsets(file, 4) == [10, 0, 0, 13]
    for index in (4, 5):
        noted(file, index, 10 + index)
    assert path.stat().st_size == 4 * REACHED_SIZE
    file.forget(ID, [0])
    file = ReachedFile(path)
    noted(file, 6, 16)
    noted(file, 7, 17)
    assert offsets(ReachedFile(path), 8) == [0, 0, 0, 13, 14, 15, 16, 17]
    assert path.stat().st_size == 5 * REACHED_SIZE


def test_a_log_is_forgotten_twice_at_a_time() -> None:
    """The one that ends second harms neither the log's new record nor the one that has taken the room of the old
    record."""
    disk = FaultyDisk()
    file = ReachedFile(FILE, disk)
    noted(file, 0, 10)

    def other(name: str) -> bool:
        if name == f"fdatasync {REACHED}":
            disk.refuses = lambda name: False
            file.forget(ID, [0])
            noted(file, 1, 11)
            noted(file, 0, 12)
        return False

    disk.refuses = other
    file.forget(ID, [0])
    assert offsets(file, 2) == offsets(ReachedFile(FILE, disk), 2) == [12, 11]
    file.forget(ID, [0])
    assert offsets(ReachedFile(FILE, disk), 2) == [0, 11]


def test_a_log_that_one_fails_to_forget_while_another_does() -> None:
    """The log notes nothing in the room that it is about to give up."""
    disk = FaultyDisk()
    file = ReachedFile(FILE, disk)
    before = noted(file, 0, 10)

    def other(name: str) -> bool:
        if name == f"fdatasync {REACHED}":
            disk.refuses = lambda name: True
            with pytest.raises(StorageError):
                file.forget(ID, [0])
            disk.refuses = lambda name: False
            before.note(11, 1)
        return False

    disk.refuses = other
    file.forget(ID, [0])
    assert offsets(ReachedFile(FILE, disk), 1) == [0]


def test_damage_harms_one_record(tmp_path: Path) -> None:
    path = tmp_path / REACHED
    file = ReachedFile(path)
    for index in range(3):
        noted(file, index, 10 + index)
    whole = path.read_bytes()
    chance = random.Random(1)
    for _ in range(100):
        data = bytearray(whole)
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        left = [10 + index if index != at // REACHED_SIZE else 0 for index in range(3)]
        assert offsets(ReachedFile(path), 3) == left
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert offsets(ReachedFile(path), 3) == [10, 11, 12][: size // REACHED_SIZE] + [0] * (3 - size // REACHED_SIZE)
        file = ReachedFile(path)
        noted(file, 2, 12)
        assert file.of(ID, 2).offset == ReachedFile(path).of(ID, 2).offset == 12


def test_a_disk_that_refuses() -> None:
    """A record that can't be written harms nobody; a record that can't be cleared stops what would shorten the log."""
    disk = FaultyDisk()
    file = ReachedFile(FILE, disk)
    log = Log.open(FOLDER, SMALL, disk=disk, reached=file.of(ID, 0))
    append(log, 3)
    disk.refuses = lambda name: REACHED in name
    append(log, 3)
    assert file.of(ID, 0).offset == 3
    with pytest.raises(StorageError):
        log.truncate(2)
    assert log.end_offset == 6
    with pytest.raises(StorageError):
        file.forget(ID, [0])
    disk.refuses = lambda name: False
    append(log, 1)
    assert file.of(ID, 0).offset == 7  # the record is still there, and goes on noting
    log.truncate(2)
    file.forget(ID, [0])
    disk.crash()
    assert ReachedFile(FILE, disk).of(ID, 0).offset == 0


def test_a_file_that_cant_be_read() -> None:
    disk = FaultyDisk()
    noted(ReachedFile(FILE, disk), 0, 5)
    real = FaultyFile.pread

    def fails(self: FaultyFile, size: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    FaultyFile.pread = fails  # type: ignore[method-assign]
    try:
        file = ReachedFile(FILE, disk)
    finally:
        FaultyFile.pread = real  # type: ignore[method-assign]
    noted(file, 1, 6)
    assert offsets(ReachedFile(FILE, disk), 2) == [0, 6]
