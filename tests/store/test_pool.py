"""The number of open files is bounded, and a file is never taken away from somebody who reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from krappy.store.disk import OS_DISK
from krappy.store.index import OffsetIndex
from krappy.store.pool import Handle, Pool
from tests.store.files import open_files
from tests.store.logs import filled, offsets, rows


def handle(folder: Path, entries: int = 0) -> Handle:
    index = OffsetIndex()
    for number in range(entries):
        index.append(number, number)
    return Handle(OS_DISK.open(folder / "file", create=True), index)


def test_no_more_files_than_allowed(tmp_path: Path) -> None:
    pool = Pool(max_files=3)
    before = open_files(tmp_path)
    for owner in range(10):
        pool.get(owner, lambda: handle(tmp_path))
    assert len(pool) == 3
    assert open_files(tmp_path) == before + 3
    assert [owner for owner in range(10) if pool.peek(owner)] == [7, 8, 9]


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    pool = Pool(max_files=2)
    for owner in "abab":
        pool.get(owner, lambda: handle(tmp_path))
    pool.get("a", lambda: pytest.fail("it is open"))
    pool.get("c", lambda: handle(tmp_path))
    assert pool.peek("b") is None
    assert pool.peek("a")


def test_indexes_count_too(tmp_path: Path) -> None:
    pool = Pool(max_files=100, max_index_bytes=8 * 25)
    for owner in range(5):
        pool.put(owner, handle(tmp_path, 10))
    assert len(pool) == 2
    pool.put("big", handle(tmp_path, 1000))
    assert len(pool) == 1  # one file may always stay
    pool.discard("big")
    pool.discard("big")
    for _ in range(5):
        pool.put("same", handle(tmp_path, 10))
    pool.put("other", handle(tmp_path, 10))
    assert len(pool) == 2


def test_who_holds_a_handle_keeps_the_file(tmp_path: Path) -> None:
    pool = Pool(max_files=1)
    held = pool.get(1, lambda: handle(tmp_path))
    pool.get(2, lambda: handle(tmp_path))
    held.file.write([b"still open"], 0)
    fd = held.file.fd
    del held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_log_of_many_segments_reads_with_one_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krappy.store.segment.POOL", Pool(max_files=1))
    log = filled(tmp_path, 100)
    assert len(log.segments) > 8
    log.sync()
    before = open_files(tmp_path)
    for _ in range(2):
        assert offsets(rows(log)) == list(range(300))
    assert open_files(tmp_path) == before
    log.close()


def test_a_log_that_is_never_synced_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krappy.store.segment.POOL", Pool(max_files=1))
    log = filled(tmp_path, 10)
    before = open_files(tmp_path)
    filled_more = filled(tmp_path / "other-0", 1000)
    assert len(filled_more.segments) > 80
    assert open_files(tmp_path) < before + 60
    assert filled_more.sync() == 3000
    assert open_files(tmp_path) <= before + 2
    log.close()
    filled_more.close()
