"""The log on a real disk: what is appended comes back, from any offset, in pieces of any size, while it grows."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from krappy.errors import CorruptBatch, OffsetOutOfRange, StorageError
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store.disk import Buffer, Disk, File
from krappy.store.log import Log
from tests.store.logs import SMALL, Row, filled, log_files, made, offsets, opened, rows, unpacked


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    log = opened(tmp_path / "deep" / "t-0")
    assert (log.start_offset, log.end_offset, log.size, len(log.segments)) == (0, 0, 0, 1)
    assert log.read(0, 1000) == b""
    assert log.find_timestamp(0) is None
    assert log.recovery.clean
    assert str(log.recovery).endswith("t-0: offsets 0 to 0")


def test_a_new_log_can_start_elsewhere(tmp_path: Path) -> None:
    log = Log.open(tmp_path, SMALL, start_offset_hint=500)
    assert log.append([made(b"a")], 0, 1) == 500
    log.close()
    log = Log.open(tmp_path, SMALL, start_offset_hint=900)
    assert (log.start_offset, log.end_offset) == (500, 501)


def test_offsets_are_given_in_order_and_the_bytes_stay(tmp_path: Path) -> None:
    log = opened(tmp_path)
    first, second = made(b"a", b"b"), made(b"c", codec=4)
    assert log.append([first, second], 7, 1) == 0
    assert log.append([first], 8, 1) == 3
    assert log.end_offset == 5
    data = bytes(log.read(0, 10_000))
    expected = b""
    for (header, given), (offset, epoch) in zip([first, second, first], [(0, 7), (2, 7), (3, 8)], strict=True):
        expected += batch.stamp(header, offset, epoch) + given[16:]
    assert data == expected
    assert [row.value for row in unpacked(data)] == [b"a", b"b", b"c", b"a", b"b"]


def test_appended_views_are_not_changed(tmp_path: Path) -> None:
    header, data = made(b"a")
    kept = bytearray(data)
    opened(tmp_path).append([(header, memoryview(kept))] * 2, 3, 1)
    assert kept == data


def test_more_batches_than_one_writev_takes(tmp_path: Path) -> None:
    config = TopicConfig()
    log = opened(tmp_path, config)
    many = [made(b"%d" % number) for number in range(3000)]
    log.append(many, 0, 1)
    assert [row.value for row in rows(log, max_bytes=1 << 20)] == [b"%d" % number for number in range(3000)]


def test_a_header_that_is_not_its_batchs_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    header, data = made(b"a")
    with pytest.raises(CorruptBatch):
        log.append([made(b"x"), (header, data + b"more")], 0, 1)
    assert log.end_offset == 0
    assert log.read(0, 100) == b""
    assert log.append([(header, data)], 0, 1) == 0
    assert offsets(rows(log)) == [0]


def test_every_offset_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    assert len(log.segments) > 5
    for reader in live_and_reopened(log):
        for offset in range(reader.end_offset):
            header = batch.read_header(reader.read(offset, 1))
            assert header.base_offset == offset // 3 * 3
        assert rows(reader) == [Row(n, 1000 + n, b"k", b"%04d" % n) for n in range(180)]
        assert rows(reader, 100)[0].offset == 100


def reopened(log: Log) -> Log:
    log.close()
    return opened(log.folder, log.config)


def live_and_reopened(log: Log) -> Iterator[Log]:
    yield log
    yield reopened(log)


@pytest.mark.parametrize("max_bytes", [0, 1, 60, 61, 62, 99, 100, 250, 999, 1 << 20])
def test_reads_of_any_size_give_whole_batches(tmp_path: Path, max_bytes: int) -> None:
    log = filled(tmp_path, 30)
    assert offsets(rows(log, max_bytes=max_bytes)) == list(range(90))
    batch_size = len(log.read(0, 1))
    assert len(log.read(0, max_bytes)) <= max(max_bytes, batch_size)


def test_one_batch_above_max_bytes_only_if_asked_for(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    assert log.read(4, 50, min_one=False) == b""
    assert len(log.read(4, 50)) == len(log.read(4, 250)) / 2


def test_no_batch_from_the_limit_on(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    for limit in range(90):
        assert offsets(rows(log, limit=limit, max_bytes=10_000)) == list(range((limit + 2) // 3 * 3))
    assert log.read(30, 1000, limit=30) == b""
    assert log.read(30, 1000, limit=10) == b""


def test_a_read_ends_behind_the_batch_that_reaches_max_records(tmp_path: Path) -> None:
    log = filled(tmp_path, 6)
    assert [log.read_span(0, 9999, max_records=n).records for n in (0, 1, 3, 4, 6, 7)] == [3, 3, 3, 6, 6, 9]
    span = log.read_span(4, 9999, max_records=4)
    assert (span.next_offset, span.records) == (9, 6)


def test_outside_of_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.delete_before(12)
    assert log.read(30, 100) == b""
    for offset in (11, 31, -1):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, 100)
        assert caught.value.details == {"start": 12, "end": 30}
    with pytest.raises(OffsetOutOfRange):
        log.locate(31, 100)


def test_segments_roll_by_size_and_never_split_a_batch(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    infos = log.segments
    assert all(info.size <= 1000 for info in infos)
    assert all(a.next_offset == b.base_offset for a, b in pairwise(infos))
    assert infos[-1].next_offset == log.end_offset == 120
    assert [path.name for path in log_files(tmp_path)] == [f"{info.base_offset:020d}.log" for info in infos]
    assert sum(path.stat().st_size for path in log_files(tmp_path)) == log.size == sum(info.size for info in infos)


def test_a_batch_above_the_segments_size_gets_its_own(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([made(b"a"), made(b"x" * 5000), made(b"b")], 0, 1)
    assert [info.next_offset for info in log.segments] == [1, 2, 3]
    assert [row.value[:1] for row in rows(log) if row.value] == [b"a", b"x", b"b"]


def test_one_append_over_many_segments(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([made(b"%d" % n) for n in range(100)], 0, 5)
    assert len(log.segments) > 5
    assert offsets(rows(log)) == list(range(100))
    assert {info.created_ms for info in log.segments} == {5}
    log = reopened(log)
    assert offsets(rows(log)) == list(range(100))


def test_segments_roll_by_age(tmp_path: Path) -> None:
    log = opened(tmp_path, TopicConfig(segment_ms=1000))
    log.append([made(b"a")], 0, 5000)
    log.append([made(b"b")], 0, 5999)
    log = reopened(log)
    log.append([made(b"c")], 0, 6000)
    assert [info.created_ms for info in log.segments] == [5000, 6000]


def test_roll(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.roll()
    log.roll()
    assert [info.base_offset for info in log.segments] == [0, 3]
    log = reopened(log)
    assert [info.base_offset for info in log.segments] == [0, 3]
    assert log.append([made(b"a")], 0, 1) == 3
    assert offsets(rows(log)) == [0, 1, 2, 3]


def test_settings_may_change(tmp_path: Path) -> None:
    log = opened(tmp_path, TopicConfig())
    log.append([made(b"a")], 0, 1)
    log.config = TopicConfig(segment_bytes=100)
    log.append([made(b"b")], 0, 1)
    assert len(log.segments) == 2


def test_find_timestamp_is_exact(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    for reader in live_and_reopened(log):
        assert reader.find_timestamp(0) == (0, 1000)
        for offset in range(180):
            assert reader.find_timestamp(1000 + offset) == (offset, 1000 + offset)
        assert reader.find_timestamp(1180) is None
        assert reader.find_timestamp(1100, limit=100) is None
        assert reader.find_timestamp(1100, limit=101) == (100, 1100)


def test_find_timestamp_in_disorder(tmp_path: Path) -> None:
    log = opened(tmp_path)
    stamps = [(n * 7919) % 1000 for n in range(300)]
    for stamp in stamps:
        log.append([made(b"x" * 20, at=stamp)], 0, 1)
    for reader in live_and_reopened(log):
        for wanted in range(0, 1000, 13):
            first = next((n for n, stamp in enumerate(stamps) if stamp >= wanted), None)
            assert reader.find_timestamp(wanted) == (None if first is None else (first, stamps[first]))


def test_find_timestamp_after_the_start_moved(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    log.delete_before(50)
    assert log.find_timestamp(0) == (50, 1050)


def test_locate_names_the_bytes_that_read_gives(tmp_path: Path) -> None:
    log = filled(tmp_path, 30)
    for offset in range(0, 90, 7):
        for limit in (None, 60, 61, 88):
            places = log.locate(offset, 10_000, limit)
            data = b"".join(file.pread(size, position) for file, position, size in places)
            assert unpacked(data) == [
                row for row in rows(log, offset // 3 * 3, limit=limit) if limit is None or offset < limit
            ]
    assert log.locate(0, 1)[0][2] == len(log.read(0, 1))
    assert log.locate(90, 100) == []


def test_what_is_located_ends_with_a_whole_batch_where_the_index_knows_one(tmp_path: Path) -> None:
    log = opened(tmp_path, TopicConfig(index_interval_bytes=1))  # each batch has an entry, but for the first one
    sizes = []
    for number in range(20):
        header, data = made(b"x" * (number * 37 % 200 + 1))
        sizes.append(len(data))
        log.append([(header, data)], 0, 1)
    for reader in live_and_reopened(log):
        for offset in range(20):
            for room in range(1, sum(sizes[offset:]) + 100, 13):
                ((_, position, size),) = reader.locate(offset, room)
                assert position == sum(sizes[:offset])
                whole = 0
                while offset + whole < 20 and sum(sizes[offset : offset + whole + 1]) <= room:
                    whole += 1
                assert size == sum(sizes[offset : offset + max(1, whole)])


def test_delete_before_takes_whole_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    infos = log.segments
    assert log.delete_before(infos[1].next_offset - 1) == [infos[0]]
    assert log.start_offset == infos[1].next_offset - 1
    assert log.segments == infos[1:]
    assert log.delete_before(5) == []
    assert offsets(rows(log)) == list(range(infos[1].next_offset - 1, 120))
    assert len(log_files(tmp_path)) == len(log_files(tmp_path, ".index")) == len(infos) - 1
    log = reopened(log)
    assert (log.start_offset, log.segments) == (infos[1].next_offset - 1, infos[1:])
    assert log.delete_before(10**9) == list(infos[1:-1])
    assert (log.start_offset, log.end_offset) == (120, 120)
    assert rows(log) == []
    log = reopened(log)
    assert (log.start_offset, log.end_offset) == (120, 120)
    assert log.append([made(b"a")], 0, 1) == 120
    assert offsets(rows(log)) == [120]


def test_everything_expired_then_reopened(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.roll()
    log.delete_before(log.end_offset)
    assert [info.base_offset for info in log.segments] == [9]
    log = reopened(log)
    assert (log.start_offset, log.end_offset, log.size) == (9, 9, 0)
    assert log.recovery.clean


def test_after_close_nothing_works_and_nothing_breaks(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.close()
    log.close()
    for work in (
        lambda: log.append([made(b"a")], 0, 1),
        lambda: log.read(0, 10),
        lambda: log.sync(),
        lambda: log.roll(),
        lambda: log.checkpoint(),
        lambda: log.delete_before(5),
        lambda: log.find_timestamp(1),
    ):
        with pytest.raises(StorageError):
            work()


def test_destroy(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", 30)
    log.destroy()
    assert not (tmp_path / "t-0").exists()
    with pytest.raises(StorageError):
        log.append([made(b"a")], 0, 1)
    log.destroy()


def test_two_logs_do_not_share(tmp_path: Path) -> None:
    one, other = filled(tmp_path / "a-0", 20), filled(tmp_path / "b-0", 10)
    assert (len(rows(one)), len(rows(other))) == (60, 30)


def test_reads_beside_appends_and_deletions(tmp_path: Path) -> None:
    """Four readers follow a log that grows, rolls and loses its oldest events; each sees every offset once,
    in order."""
    log = opened(tmp_path)
    total, problems = 6000, []
    done = threading.Event()

    def follow() -> None:
        position = 0
        try:
            while position < total:
                try:
                    span = log.read_span(position, 600)
                except OffsetOutOfRange as error:
                    if position >= error.details["start"]:
                        raise
                    position = error.details["start"]
                    continue
                if not span.data:
                    time.sleep(0.001)
                for row in unpacked(span.data):
                    if row.offset >= position:
                        assert row.offset == position
                        assert row.value == b"%d" % position
                        position += 1
        except BaseException as error:
            problems.append(error)

    def forget() -> None:
        while not done.wait(0.002):
            log.delete_before(log.end_offset - 1000)

    readers = [threading.Thread(target=follow) for _ in range(4)]
    forgetter = threading.Thread(target=forget)
    for thread in (*readers, forgetter):
        thread.start()
    for number in range(0, total, 3):
        log.append([made(*(b"%d" % n for n in range(number, number + 3)))], 0, 1)
        if number % 300 == 0:
            log.sync()
    for thread in readers:
        thread.join(60)
    done.set()
    forgetter.join(60)
    assert problems == []
    assert log.end_offset == total


@pytest.mark.parametrize("instead", ["nothing", "a copy", "a link to itself"])
def test_a_log_knows_whether_its_folder_is_where_it_was(tmp_path: Path, instead: str) -> None:
    log = filled(tmp_path / "t-0", 50)
    assert log.is_in_place
    log.folder.rename(tmp_path / "away")
    if instead == "a copy":
        shutil.copytree(tmp_path / "away", log.folder)
    elif instead == "a link to itself":
        log.folder.symlink_to(log.folder)
    assert not log.is_in_place
    if instead != "nothing":
        shutil.rmtree(log.folder) if instead == "a copy" else log.folder.unlink()
    (tmp_path / "away").rename(log.folder)
    assert log.is_in_place


def test_a_segment_that_is_closed_and_deleted_during_the_look_was_in_place(tmp_path: Path) -> None:
    """Such a look may take long, on a disk that is slow."""

    class SlowDisk(Disk):
        def is_at(self, path: Path, file: File) -> bool:
            log.roll()
            log.delete_before(log.end_offset)
            assert not path.exists()
            return super().is_at(path, file)

    log = filled(tmp_path, 1, disk=SlowDisk())
    assert log.is_in_place


def test_a_log_is_refused_at_once_while_an_append_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop refuses it. What is being appended is not durable later, either."""
    log, write = filled(tmp_path, 1), File.write
    hangs, go_on = threading.Event(), threading.Event()

    def hang(file: File, buffers: Sequence[Buffer], position: int) -> None:
        hangs.set()
        assert go_on.wait(20)
        write(file, buffers, position)

    with monkeypatch.context() as patched:
        patched.setattr(File, "write", hang)
        appender = threading.Thread(target=lambda: log.append([made(b"late")], 0, 1))
        refuser = threading.Thread(target=lambda: log.refuse("it was moved"))
        appender.start()
        assert hangs.wait(20)
        refuser.start()
        refuser.join(5)
        is_late = refuser.is_alive()
        go_on.set()
        appender.join(20)
        refuser.join(20)
    assert not is_late
    assert log.end_offset == 4
    with pytest.raises(StorageError, match="it was moved"):
        log.sync()
    assert log.synced_offset == 0


@pytest.mark.parametrize(("number", "is_in_place"), [(errno.EACCES, False), (errno.ESTALE, False), (errno.EIO, True)])
def test_a_disk_that_does_not_tell_where_a_log_is_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_in_place: bool
) -> None:
    def stat(path: object) -> None:
        raise OSError(number, os.strerror(number))

    log = filled(tmp_path, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        found = log.is_in_place
    assert found is is_in_place
