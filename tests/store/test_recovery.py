"""Opening what a crash, a bad disk or a person has left: what is cut, what is reported, what is refused."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from krappy.core import retention
from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store import checkpoint as checkpoints
from krappy.store.log import Log
from krappy.store.walk import headers
from tests.store.faulty_disk import Everything, FaultyDisk, Keep, PowerLoss
from tests.store.logs import FOLDER, SMALL, Row, filled, forget_checkpoint, log_files, made, offsets, opened, rows

ONE = TopicConfig(index_interval_bytes=100)  # all in one segment


def kill(log: Log) -> Path:
    """What a SIGKILL leaves: the files as they are, without a clean close."""
    return log.folder


def test_a_killed_process_loses_nothing() -> None:
    disk = FaultyDisk()
    filled(FOLDER, 40, disk=disk)
    disk.crash(Everything())
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log)) == list(range(120))
    assert (log.recovery.cut_bytes, log.recovery.clean) == (0, True)
    assert log.recovery.checked_bytes == log.size


def test_a_lost_power_loses_what_was_not_synced() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 20, disk=disk)
    assert log.sync() == log.synced_offset == 60
    log.append([made(b"lost")], 0, 1)
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log)) == list(range(60))
    assert log.append([made(b"new")], 0, 1) == 60


def test_a_clean_close_leaves_nothing_to_check() -> None:
    disk = FaultyDisk()
    filled(FOLDER, 40, disk=disk).close()
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log)) == list(range(120))
    assert (log.recovery.checked_bytes, log.recovery.clean) == (0, True)
    before = list(disk.log)
    log.close()
    assert disk.log == before  # there is nothing to write either


def test_a_checkpoint_bounds_what_is_checked() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 40, disk=disk)
    log.checkpoint()
    size = log.size
    filled_on = [made(b"x" * 50)] * 10
    log.append(filled_on, 0, 1)
    grown = log.size - size
    disk.crash(Everything())
    log = opened(FOLDER, disk=disk)
    assert log.recovery.checked_bytes == grown
    assert log.end_offset == 130


def test_a_long_run_checkpoints_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krappy.store.writing.CHECKPOINT_BYTES", 2000)
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    for number in range(100):
        log.append([made(b"%d" % number)], 0, 1)
        log.sync()
    size = log.size
    disk.crash(Everything())
    assert opened(FOLDER, disk=disk).recovery.checked_bytes < 2200 < size


def test_events_without_a_timestamp_are_as_old_as_their_segment() -> None:
    """A checkpoint of a segment without events does not know when the first one will come, and does not say 1970
    either."""
    disk, week = FaultyDisk(), 7 * 86_400_000
    log = opened(FOLDER, disk=disk)
    disk.clock_ms = now = 1_700_000_000_000
    log.append([made(b"fresh", at=-1)], 0, now)
    log.sync()
    for _ in range(2):  # the second time, a checkpoint knows of the events
        disk.crash(Everything())
        disk.clock_ms = now
        log = opened(FOLDER, disk=disk)
        assert log.segments[0].latest_ms == now
        assert retention.expired(TopicConfig(retention_ms=week), log.segments, now + week) == 0
        assert retention.expired(TopicConfig(retention_ms=week), log.segments, now + week + 1) == 1


def test_a_checkpoint_of_an_older_version_that_says_1970_is_not_believed() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    disk.clock_ms = now = 1_700_000_000_000
    log.append([made(b"x" * 600, at=-1)], 0, now)
    log.append([made(b"x" * 600, at=-1)], 0, now)
    log.close()
    saved = checkpoints.load(disk, FOLDER).checkpoint
    closed = tuple(info._replace(created_ms=None) for info in saved.closed)
    checkpoints.save(disk, FOLDER, saved._replace(created_ms=None, closed=closed))
    assert [info.latest_ms for info in opened(FOLDER, disk=disk).segments] == [now, now]


# ---------------------------------------------------------------- the tail


FIRST = FOLDER / "00000000000000000000.log"


def four_batches(*, closed: bool) -> tuple[FaultyDisk, bytes, int]:
    """A disk with a log of four equal batches of three records; the bytes of its only segment; and the size
    of a batch."""
    disk = FaultyDisk()
    log = filled(FOLDER, 4, config=ONE, disk=disk)
    if closed:
        log.close()
    whole = disk.read_file(FIRST)
    return disk.copy(), whole, len(whole) // 4


def test_the_tail_truncated_at_every_byte() -> None:
    source, whole, size = four_batches(closed=False)
    for length in range(len(whole) + 1):
        disk = source.copy()
        disk.put(FIRST, whole[:length])
        log = opened(FOLDER, ONE, disk)
        assert offsets(rows(log)) == list(range(length // size * 3))
        assert log.recovery.cut_bytes == length % size
        assert log.recovery.cut_reason == ("torn" if length % size else "")
        assert len(disk.read_file(FIRST)) == length - length % size
        assert log.append([made(b"new")], 0, 1) == length // size * 3
        log.close()
        assert opened(FOLDER, ONE, disk).recovery.clean


def test_the_tail_truncated_on_a_real_disk(tmp_path: Path) -> None:
    source = kill(filled(tmp_path / "source", 4, config=ONE))
    (file,) = log_files(source)
    whole = file.read_bytes()
    size = len(whole) // 4
    for length in (0, 1, 61, size - 1, size, size + 60, 3 * size + 1, 4 * size):
        folder = tmp_path / f"{length}"
        shutil.copytree(source, folder)
        (folder / file.name).write_bytes(whole[:length])
        log = opened(folder, ONE)
        assert offsets(rows(log)) == list(range(length // size * 3))
        assert log.recovery.cut_bytes == length % size
        assert (folder / file.name).stat().st_size == length - length % size
        assert log.append([made(b"new")], 0, 1) == length // size * 3
        log.close()
        assert opened(folder, ONE).recovery.clean


@pytest.mark.parametrize("power", [True, False], ids=["killed", "power lost"])
def test_a_bit_flipped_in_every_byte_of_the_tail(power: bool) -> None:
    """What is behind a wrong batch stays if the page cache is the same, since then it is no torn write. Else it is cut.

    In both cases nothing goes without a copy, and no offset that was given is given again.
    """
    source, whole, size = four_batches(closed=False)
    for position in range(size, 2 * size):
        disk = source.copy()
        data = flipped(whole, position)
        disk.put(FIRST, data)
        if not power:
            disk.crash()
        log = opened(FOLDER, ONE, disk)
        report = log.recovery
        if 12 <= position - size < 16:  # the leader epoch stands outside of the checksum (KIP-98)
            assert len(report.damage) == 1
            assert (report.cut_bytes, report.lost_offsets, report.notes) == (0, 0, [])
            assert offsets(rows(log)) == list(range(12))
            continue
        assert offsets(rows(log)) == ([0, 1, 2, *range(6, 12)] if power else [0, 1, 2])
        assert log.end_offset == 12
        assert report.lost_offsets == (3 if power else 9)
        assert f"offsets 3 to {5 if power else 11} at position {size} of {FIRST}" in str(report)
        if not power:
            assert (report.cut_bytes, report.cut_position) == (3 * size, size)
            assert report.cut_file == str(FIRST)
            assert report.cut_reason in ("checksum", "structure", "offsets", "torn")
            assert f"{3 * size} bytes cut from {FIRST}" in str(report)
        (kept,) = report.set_aside
        assert disk.read_file(Path(kept)) == (data[size : 2 * size] if power else data[size:])
        assert [text for _, found in log.scrub() for text in found] == []
        assert log.append([made(b"new")], 0, 1) == 12
        log.close()
        log = opened(FOLDER, ONE, disk)
        assert log.recovery.clean
        assert offsets(rows(log))[-1] == 12


def test_the_last_batch_damaged_after_a_kill_keeps_its_offsets() -> None:
    """The batch was written to its end, so its publisher may have been told its offsets."""
    source, whole, size = four_batches(closed=False)
    for position in range(3 * size + 16, 4 * size):
        disk = source.copy()
        disk.put(FIRST, flipped(whole, position))
        log = opened(FOLDER, ONE, disk)
        assert offsets(rows(log)) == list(range(9))
        assert log.end_offset >= 12
        assert len(log.recovery.set_aside) == 1


def test_two_damaged_places_and_a_batch_within_a_value() -> None:
    """A batch within an event's value is not taken for a batch of the log."""
    fake, _ = made(b"forged")
    _, forged = made(b"forged")
    forged = batch.stamp(fake, 7, 0) + forged[batch.STAMPED :]
    disk = FaultyDisk()
    log = opened(FOLDER, ONE, disk)
    for value in (b"0", b"1", forged * 3, b"3", b"4" * 200, b"5", b"6"):
        log.append([made(value)], 0, 1)
    data = bytearray(disk.read_file(FIRST))
    starts = [position for position, _ in positions(bytes(data))]
    data[starts[2] + 9] ^= 1  # its length is damaged
    data[starts[4] + 100] ^= 1
    disk.put(FIRST, bytes(data))
    log = opened(FOLDER, ONE, disk)
    assert [(row.offset, row.value) for row in rows(log)] == [(n, b"%d" % n) for n in (0, 1, 3, 5, 6)]
    assert log.recovery.lost_offsets == 2


def positions(data: bytes) -> list[tuple[int, batch.BatchHeader]]:
    found, at = [], 0
    while at < len(data):
        header = batch.read_header(data, at)
        found.append((at, header))
        at += header.size
    return found


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << position % 8
    return bytes(changed)


@pytest.mark.parametrize(("length", "reason"), [(1, "torn"), (12, "zeros"), (61, "zeros"), (5000, "zeros")])
def test_zeros_behind_the_tail(tmp_path: Path, length: int, reason: str) -> None:
    folder = kill(filled(tmp_path, 4, config=ONE))
    (file,) = log_files(folder)
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(length))
    log = opened(folder, ONE)
    assert (log.recovery.cut_bytes, log.recovery.cut_reason) == (length, reason)
    assert log.recovery.set_aside == []
    assert offsets(rows(log)) == list(range(12))
    assert file.read_bytes() == whole


def test_garbage_behind_the_tail(tmp_path: Path) -> None:
    generator = random.Random(1)
    source = kill(filled(tmp_path / "source", 4, config=ONE))
    for number in range(60):
        folder = tmp_path / f"{number}"
        shutil.copytree(source, folder)
        (file,) = log_files(folder)
        garbage = generator.randbytes(generator.randrange(1, 400))
        file.write_bytes(file.read_bytes() + garbage)
        log = opened(folder, ONE)
        assert log.recovery.cut_bytes == len(garbage)
        assert offsets(rows(log)) == list(range(12))


def bit_flipped(bit: int, power: bool) -> tuple[FaultyDisk, list[Row], bytes]:
    """A killed broker's disk, on which a bit of the log's last batch is then damaged; the log's rows, and its file,
    before that. `power`: False: the power was lost, too, or the folder copied."""
    disk = FaultyDisk()
    log = filled(FOLDER, 4, config=ONE, disk=disk)
    log.checkpoint()
    log.append([made(b"late", b"x", at=5000)], 0, 1)
    log.sync()
    before = rows(log)
    disk.crash(Everything())
    whole = disk.read_file(FIRST)
    damaged = bytearray(whole)
    *_, at = (position for position, _ in headers(disk.open(FIRST), 0, len(whole), 0, dense=True))
    damaged[at + bit // 8] ^= 1 << bit % 8
    disk.put(FIRST, damaged)
    disk.boots += not power
    return disk, before, whole


@pytest.mark.parametrize("bit", range(64))
@pytest.mark.parametrize("power", [True, False], ids=["killed", "power lost, or a copied folder"])
def test_the_offsets_of_a_last_batch_whose_base_offset_is_damaged_are_not_given_again(bit: int, power: bool) -> None:
    disk, before, _ = bit_flipped(bit, power)
    log = opened(FOLDER, ONE, disk)
    assert rows(log) == before[:-2]
    assert (log.end_offset, log.recovery.lost_offsets, len(log.recovery.set_aside)) == (14, 2, 1)


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("power", [True, False], ids=["killed", "power lost, or a copied folder"])
def test_a_last_batch_of_which_the_length_alone_is_damaged_stays(bit: int, power: bool) -> None:
    """A length that is too large looks like a write that a kill cut short, which may be cut without a word."""
    disk, before, whole = bit_flipped(64 + bit, power)
    log = opened(FOLDER, ONE, disk)
    assert rows(log) == before
    assert (log.end_offset, log.recovery.cut_bytes, log.recovery.clean) == (14, 0, False)
    assert disk.read_file(FIRST) == whole


def test_an_older_batch_copied_behind_the_tail_is_cut(tmp_path: Path) -> None:
    """Its checksum is right, but its offset is not. As it was written to its end, other offsets may have been given to
    it."""
    folder = kill(filled(tmp_path, 4, config=ONE))
    (file,) = log_files(folder)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 4])
    log = opened(folder, ONE)
    assert log.recovery.cut_reason == "offsets"
    assert offsets(rows(log)) == list(range(12))
    assert log.end_offset == 15


@pytest.mark.parametrize("power", [True, False], ids=["killed", "power lost"])
def test_damage_in_an_earlier_segment_behind_the_recovery_point(power: bool) -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 40, disk=disk)
    files = [FOLDER / f"{info.base_offset:020d}.log" for info in log.segments]
    disk = disk.copy()
    data = bytearray(disk.read_file(files[1]))
    data[-1] ^= 1
    disk.put(files[1], bytes(data))
    if not power:
        disk.crash()
    log = opened(FOLDER, disk=disk)
    found = offsets(rows(log))
    assert log.end_offset == 120
    if power:
        missing = set(range(120)) - set(found)
        assert len(missing) == log.recovery.lost_offsets == 3
        assert len(log.segments) == len(files)
    else:
        assert found == list(range(len(found)))
        assert log.recovery.lost_offsets == 120 - len(found)
        assert {Path(name).name for name in log.recovery.set_aside if name.endswith(".log.cut")} == {
            path.name + ".cut" for path in files[2:]
        }
    log.close()
    assert opened(FOLDER, disk=disk).recovery.clean


class Names(Keep):
    """Keeps only names and lengths."""

    def name(self) -> bool:
        return True

    def size(self, synced: int, written: int) -> int:
        return written


@pytest.mark.parametrize("again", [Everything, Keep, Names])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("segment", [1, -1], ids=["earlier", "last"])
def test_a_recovery_that_is_cut_short_anywhere_gives_no_offset_again(
    segment: int, power: bool, again: type[Keep]
) -> None:
    source = FaultyDisk()
    log = filled(FOLDER, 40, disk=source)
    file = FOLDER / f"{log.segments[segment].base_offset:020d}.log"
    source.crash(Everything())
    data = bytearray(source.read_file(file))
    data[100] ^= 1
    source.put(file, bytes(data))
    source.boots += power
    whole = source.copy()
    expected = offsets(rows(opened(FOLDER, disk=whole)))
    operations = whole.operations
    assert operations > 5
    for at in range(operations):
        disk = source.copy()
        disk.dies_at = at
        with pytest.raises(PowerLoss):
            opened(FOLDER, disk=disk)
        disk.crash(again())
        log = opened(FOLDER, disk=disk)
        assert log.end_offset >= 120, f"it was cut short at operation {at}"
        assert all(row.value == b"%04d" % row.offset for row in rows(log))
        if again is Everything:
            assert set(offsets(rows(log))) >= set(expected)


# ---------------------------------------------------------------- before the recovery point


def test_a_bit_flipped_in_every_byte_of_what_was_checked() -> None:
    """It is never cut and never served: whoever reads there gets an error that names the file and the position."""
    source, whole, size = four_batches(closed=True)
    for position in range(size, 2 * size):
        disk = source.copy()
        disk.put(FIRST, flipped(whole, position))
        log = opened(FOLDER, ONE, disk)
        assert log.recovery.clean
        assert log.end_offset == 12
        if 12 <= position - size < 16:
            continue
        assert offsets(rows(log, limit=3)) == [0, 1, 2]
        for max_bytes in (1, 10_000):
            assert batch.read_header(log.read(0, max_bytes)).base_offset == 0
            with pytest.raises(CorruptBatch) as caught:
                log.read(3, max_bytes)
            assert caught.value.details == {"file": str(FIRST), "position": size}
            assert f"{FIRST} at position {size}" in str(caught.value)
        with pytest.raises(CorruptBatch):
            rows(log)
        assert log.append([made(b"new")], 0, 1) == 12
        assert offsets(rows(log, 12)) == [12]


def test_the_checked_part_truncated_at_every_byte() -> None:
    """The disk lost what it had promised to keep. The log goes on behind it, no offset is given twice, and the loss is
    reported."""
    source, whole, size = four_batches(closed=True)
    for length in range(len(whole)):
        disk = source.copy()
        disk.put(FIRST, whole[:length])
        log = opened(FOLDER, ONE, disk)
        kept = length // size * 3
        assert log.recovery.lost_offsets == 12 - kept
        assert f"{12 - kept} OFFSETS LOST" in str(log.recovery)
        assert log.recovery.cut_bytes == length % size
        assert log.end_offset == 12
        assert offsets(rows(log)) == list(range(kept))
        assert log.append([made(b"new")], 0, 1) == 12
        assert offsets(rows(log)) == [*range(kept), 12]
        log.close()
        log = opened(FOLDER, ONE, disk)
        assert log.recovery.clean
        assert offsets(rows(log)) == [*range(kept), 12]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_missing_is_made_anew(tmp_path: Path, suffix: str) -> None:
    """A loss of power may take the index: with durability "os", nobody waits until it is on disk."""
    filled(tmp_path, 200).close()
    lost = sorted(tmp_path.glob(f"*{suffix}"))[1]
    had = lost.read_bytes()
    lost.unlink()
    log = opened(tmp_path)
    assert lost.read_bytes() == had
    assert offsets(rows(log)) == list(range(600))
    log.close()


def test_a_closed_segment_that_was_truncated_is_reported(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    files = log_files(tmp_path)
    files[1].write_bytes(files[1].read_bytes()[:-10])
    log = opened(tmp_path)
    assert len(log.recovery.damage) == 1
    assert files[1].name in log.recovery.damage[0]
    assert "DAMAGE" in str(log.recovery)
    assert log.end_offset == 120
    assert len(files) == len(log_files(tmp_path))
    last = log.segments[1].next_offset - 1
    assert offsets(rows(log, limit=last - 2)) == list(range(last - 2))
    with pytest.raises(CorruptBatch) as caught:
        log.read(last, 1000)
    assert caught.value.details["file"] == str(files[1])
    assert offsets(rows(log, last + 1)) == list(range(last + 1, 120))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_segment_is_refused(tmp_path: Path, number: int) -> None:
    log = filled(tmp_path, 40)
    log.close()
    files = log_files(tmp_path)
    assert len(files) > 3
    files[number].unlink()
    with pytest.raises(StorageError, match=r"missing|starts at offset 0") as caught:
        opened(tmp_path)
    assert str(tmp_path) in str(caught.value)
    if number:
        forget_checkpoint(tmp_path)
        with pytest.raises(StorageError, match="missing"):
            opened(tmp_path)


def test_the_last_segment_missing_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    log_files(tmp_path)[-1].unlink()
    with pytest.raises(StorageError, match="missing"):
        opened(tmp_path)
    for path in log_files(tmp_path):
        path.unlink()
    with pytest.raises(StorageError, match="no segments"):
        opened(tmp_path)


def test_overlapping_segments_are_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    first = log_files(tmp_path)[0]
    shutil.copy(first, tmp_path / "00000000000000000003.log")
    with pytest.raises(StorageError, match="overlap"):
        opened(tmp_path)


# ---------------------------------------------------------------- the checkpoint


def test_without_a_checkpoint(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.delete_before(60)
    log.append([made(b"a", producer=7, sequence=0)], 0, 1)
    log.close()
    infos, producers = log.segments, log.producers
    forget_checkpoint(tmp_path)
    log = opened(tmp_path)
    (note,) = log.recovery.notes
    assert note.startswith("there was no checkpoint; ")
    assert log.start_offset == infos[0].base_offset  # no more can be known
    assert offsets(rows(log)) == list(range(infos[0].base_offset, 121))
    assert [info[:4] for info in log.segments] == [info[:4] for info in infos]
    assert log.producers.get(7) is not None
    assert log.producers.get(7)[2] == producers.get(7)[2]  # type: ignore[index]
    log.close()
    assert opened(tmp_path).recovery.clean


def damaged_checkpoints(whole: bytes) -> list[bytes]:
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [flipped(whole, position) for position in range(len(whole))]
    return [*damaged, bytes(len(whole)), random.Random(2).randbytes(200), whole + b"x"]


def test_a_damaged_checkpoint_counts_as_none() -> None:
    source, *_ = four_batches(closed=True)
    for data in damaged_checkpoints(source.read_file(FOLDER / "checkpoint")):
        disk = source.copy()
        disk.put(FOLDER / "checkpoint", data)
        disk.put(FOLDER / "checkpoint.copy", data)
        log = opened(FOLDER, ONE, disk)
        assert log.recovery.notes[0].startswith("the checkpoint was damaged")
        assert offsets(rows(log)) == list(range(12))
        assert not log.recovery.damage


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.copy"])
def test_damage_to_one_of_its_two_files_takes_nothing_back(name: str) -> None:
    """Whichever is damaged, what was deleted stays deleted, the damage is reported, and both files are whole again."""
    source = FaultyDisk()
    log = filled(FOLDER, 4, config=ONE, disk=source)
    log.append([made(b"x", producer=5, sequence=0)], 0, 1)
    log.delete_before(7)
    log.close()
    whole = source.read_file(FOLDER / name)
    for data in [None, *damaged_checkpoints(whole)]:
        disk = source.copy()
        if data is None:
            disk.unlink(FOLDER / name)
        else:
            disk.put(FOLDER / name, data)
        log = opened(FOLDER, ONE, disk)
        assert log.start_offset == 7
        assert offsets(rows(log)) == list(range(7, 13))
        assert log.producers.get(5) is not None
        assert log.recovery.checked_bytes == 0
        if data is not None:
            assert f"the file {name} was damaged" in str(log.recovery)
        assert disk.read_file(FOLDER / "checkpoint") == disk.read_file(FOLDER / "checkpoint.copy") == whole
        disk.crash()
        assert opened(FOLDER, ONE, disk).recovery.clean


def test_a_folder_of_an_older_version_has_one_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path, 40).close()
    (tmp_path / "checkpoint.copy").unlink()
    log = opened(tmp_path)
    assert log.recovery.clean
    assert (tmp_path / "checkpoint.copy").read_bytes() == (tmp_path / "checkpoint").read_bytes()


def test_damage_in_an_older_segment_without_a_checkpoint_is_reported_not_cut(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    log.close()
    infos = log.segments
    forget_checkpoint(tmp_path)
    file = log_files(tmp_path)[1]
    data = bytearray(file.read_bytes())
    size = len(data) // 2 + 3
    data[:size] = bytes(size)
    file.write_bytes(data)
    log = opened(tmp_path)
    assert len(log.recovery.damage) == 1
    assert str(file) in log.recovery.damage[0]
    assert [info.base_offset for info in log.segments] == [info.base_offset for info in infos]
    assert file.read_bytes() == data
    with pytest.raises(CorruptBatch, match=file.name):
        log.read(infos[1].base_offset, 1000)
    assert offsets(rows(log, infos[2].base_offset)) == list(range(infos[2].base_offset, 120))


# ---------------------------------------------------------------- leftovers


def test_what_was_never_finished_is_thrown_away(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.close()
    base = "00000000000000000000"
    strangers = ["notes.txt", "00000000000000000000.log.bak", "123.log"]
    rubbish = [f"{base}.log.cleaned", "checkpoint.tmp", f"{base}.index.swap", "00000000000000000999.index"]
    for name in (*rubbish, *strangers):
        (tmp_path / name).write_bytes(b"x")
    log = opened(tmp_path)
    assert offsets(rows(log)) == list(range(30))
    names = {path.name for path in tmp_path.iterdir()}
    assert names.isdisjoint(rubbish)
    assert names.issuperset(strangers)


def test_a_deletion_is_finished() -> None:
    """The start has moved, and the power goes before any file is removed."""
    disk = FaultyDisk()
    log = filled(FOLDER, 40, disk=disk)
    log.checkpoint()
    infos = log.segments
    disk.refuses = lambda name: name.startswith("unlink")
    with pytest.raises(StorageError):
        log.delete_before(infos[2].base_offset)
    assert log.start_offset == infos[2].base_offset
    disk.refuses = lambda name: False
    disk.crash()
    log = opened(FOLDER, disk=disk)
    assert log.start_offset == infos[2].base_offset
    assert log.segments == infos[2:]
    assert offsets(rows(log)) == list(range(infos[2].base_offset, 120))


def test_the_segment_of_the_recovery_point_may_be_one_that_is_deleted() -> None:
    disk = FaultyDisk()
    log = filled(FOLDER, 4, disk=disk)
    log.delete_before(12)
    log.roll()
    log.append([made(b"x" * 900, producer=5, sequence=0)], 0, 1)
    disk.crash(Everything())
    log = opened(FOLDER, disk=disk)
    assert (log.start_offset, log.end_offset, len(log.segments)) == (12, 13, 1)
    assert log.recovery.clean
    assert log.producers.get(5) is not None


def test_a_segment_that_was_begun_and_not_written_is_taken(tmp_path: Path) -> None:
    folder = kill(filled(tmp_path, 4, config=ONE))
    (folder / "00000000000000000012.log").touch()
    log = opened(folder, ONE)
    assert len(log.segments) == 2
    assert log.append([made(b"a")], 0, 1) == 12
    (folder / "00000000000000000099.log").touch()
    log = opened(folder, ONE)
    assert log.end_offset == 13
    assert not (folder / "00000000000000000099.log").exists()


def test_a_full_disk_does_not_keep_a_log_shut() -> None:
    disk = FaultyDisk()
    filled(FOLDER, 40, disk=disk).sync()
    disk.crash(Everything())
    disk.room = 0
    log = opened(FOLDER, disk=disk)
    assert offsets(rows(log)) == list(range(120))
    with pytest.raises(StorageError):
        log.append([made(b"a")], 0, 1)
    disk.room = None
    assert log.append([made(b"a")], 0, 1) == 120


def test_a_disk_that_refuses_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "t-0").write_text("a file where a folder ought to be")
    with pytest.raises(StorageError):
        opened(tmp_path / "t-0")


def test_the_state_of_producers_survives() -> None:
    disk = FaultyDisk()
    log = opened(FOLDER, disk=disk)
    for sequence in range(0, 40, 2):
        log.append([made(b"a", b"b", producer=5, sequence=sequence)], 0, sequence)
        if sequence == 20:
            log.checkpoint()
    producers = log.producers
    assert [sent.base_sequence for sent in producers.get(5).sent] == [30, 32, 34, 36, 38]  # type: ignore[union-attr]
    for keep in (True, False):
        if not keep:
            log.close()
        disk.crash(Everything() if keep else None)
        log = opened(FOLDER, disk=disk)
        assert log.producers.get(5).sent == producers.get(5).sent  # type: ignore[union-attr]
        header, _ = made(b"a", b"b", producer=5, sequence=36)
        assert log.producers.check(header) == 36


def test_all_segments_of_a_log_stay_openable_by_hand(tmp_path: Path) -> None:
    """A log whose files were copied away from a running broker opens as a crashed one does."""
    log = filled(tmp_path / "a", 40)
    shutil.copytree(log.folder, tmp_path / "b")
    copied = Log.open(tmp_path / "b", SMALL)
    assert rows(copied) == rows(log)
