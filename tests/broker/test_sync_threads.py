"""Short syncs: what threads do for an event loop, and a log that is synced so."""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.sync_threads import LONG, MOST, SyncThreads
from krappy.errors import StorageError
from krappy.store.disk import File
from krappy.store.log import Log
from tests.store.logs import SMALL, made, opened

ROOMY = replace(SMALL, segment_bytes=1 << 20)
NOW, HOUR = 1_000, 3_600_000  # ms


class Told:
    """Takes what is told of syncs. `loop`: the thread that it must be told in."""

    def __init__(self) -> None:
        self.results: list[object] = []
        self._loop = threading.get_ident()
        self._more = trio.Event()

    def __call__(self, result: object) -> None:
        assert threading.get_ident() == self._loop
        self.results.append(result)
        self._more.set()

    async def until(self, count: int) -> list[object]:
        with trio.fail_after(30):
            while len(self.results) < count:
                self._more = trio.Event()
                await self._more.wait()
        return self.results


@asynccontextmanager
async def threads(faults: list[str] | None = None) -> AsyncIterator[SyncThreads]:
    found = SyncThreads(lambda: faults.append("fault") if faults is not None else None)
    try:
        yield found
    finally:
        found.close()


def alive() -> int:
    return sum(thread.name == "krappy sync" for thread in threading.enumerate())


def append(log: Log, events: int) -> None:
    log.append([made(b"a value") for _ in range(events)], 0, 1_000)


@trio_test
async def test_each_sync_is_told_of_with_its_error() -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with threads() as syncs:
        good, bad = Told(), Told()
        syncs.begin(lambda: None, good)
        syncs.begin(fail, bad)
        assert await good.until(1) == [None]
        [error] = await bad.until(1)
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO
    assert not alive()


@trio_test
async def test_whatever_a_sync_raises_is_told() -> None:
    def fail() -> None:
        raise MemoryError

    async with threads() as syncs:
        told = Told()
        syncs.begin(fail, told)
        syncs.begin(lambda: None, told)
        assert {type(each) for each in await told.until(2)} == {MemoryError, type(None)}


@trio_test
async def test_a_system_without_threads_left_refuses_or_keeps_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with threads() as syncs:
        told, go_on = Told(), threading.Event()
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            assert not syncs.begin(lambda: None, told)
        assert syncs.begin(lambda: go_on.wait(30), told)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            assert syncs.begin(lambda: None, told)
        assert not told.results
        go_on.set()
        assert await told.until(2) == [None, None]


@trio_test
async def test_syncs_run_side_by_side_in_so_many_threads() -> None:
    go_on, running = threading.Event(), threading.Semaphore(0)

    def sync() -> None:
        running.release()
        assert go_on.wait(30)

    async with threads() as syncs:
        told = Told()
        for _ in range(3 * MOST):
            syncs.begin(sync, told)
        for _ in range(MOST):
            assert await trio.to_thread.run_sync(lambda: running.acquire(timeout=30))
        assert not running.acquire(blocking=False)
        assert alive() == MOST
        assert not told.results
        go_on.set()
        assert await told.until(3 * MOST) == [None] * (3 * MOST)


@trio_test
async def test_one_sync_at_a_time_needs_one_thread() -> None:
    async with threads() as syncs:
        told = Told()
        for count in range(1, 20):
            syncs.begin(lambda: None, told)
            await told.until(count)
        assert alive() == 1


@trio_test
async def test_a_fault_of_one_caller_harms_no_other() -> None:
    def fault(_: object) -> None:
        raise ZeroDivisionError

    faults = list[str]()
    async with threads(faults) as syncs:
        told = Told()
        syncs.begin(lambda: None, fault)
        syncs.begin(lambda: None, told)
        assert await told.until(1) == [None]
        await trio.testing.wait_all_tasks_blocked()
    assert faults == ["fault"]


@trio_test
async def test_closing_waits_for_what_was_asked() -> None:
    done = list[int]()
    async with threads() as syncs:
        told = Told()
        for number in range(100):
            syncs.begin(lambda number=number: done.append(number), told)  # type: ignore[misc]
    assert sorted(done) == list(range(100))
    assert len(await told.until(100)) == 100


@trio_test
async def test_a_thread_that_rests_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the room of a deleted file would not be free, and its file system could not be unmounted."""

    class Synced:
        def fdatasync(self) -> None:
            pass

    async with threads() as syncs:
        told, kept = Told(), list[weakref.ref[Synced]]()
        for count in range(1, 4):
            file = Synced()
            kept.append(weakref.ref(file))
            syncs.begin(file.fdatasync, told)
            del file
            await told.until(count)
        with trio.fail_after(30):
            while any(each() is not None for each in kept):
                await trio.sleep(0.001)


@trio_test
async def test_a_sync_that_takes_long_is_seen() -> None:
    go_on = threading.Event()
    async with threads() as syncs:
        told = Told()
        assert not syncs.are_long
        syncs.begin(lambda: go_on.wait(30), told)
        syncs.begin(lambda: None, told)
        await told.until(1)
        await trio.sleep(2 * LONG)
        assert syncs.are_long, "one is under way"
        go_on.set()
        await told.until(2)
        assert syncs.are_long, "it ended last"
        with trio.fail_after(30):
            while syncs.are_long:  # on a busy machine each may take long
                syncs.begin(lambda: None, told)
                await told.until(len(told.results) + 1)


# --- a log


@trio_test
async def test_a_log_whose_short_sync_could_not_begin_is_synced_otherwise(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", ROOMY)
    append(log, 1)
    log.sync()
    append(log, 1)
    assert not log.begin_sync(lambda sync, done: False, lambda result: None)
    assert (log.synced_offset, log.is_synced) == (1, False)
    assert log.sync() == 2
    log.close()


@trio_test
async def test_an_append_that_needs_a_new_segment_is_not_short(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", replace(ROOMY, segment_ms=HOUR))
    append(log, 1)
    log.sync()
    created = log.segments[0].created_ms
    assert created is not None
    assert log.is_short(100, created + HOUR - 1)
    assert not log.is_short(100, created + HOUR)
    assert not log.is_short(ROOMY.segment_bytes, created)
    log.close()


@trio_test
async def test_a_log_has_short_syncs_once_its_checkpoint_is_written(tmp_path: Path) -> None:
    async with threads() as syncs:
        log, told = Log.open(tmp_path / "t-0", ROOMY, new=True), Told()
        append(log, 3)
        assert not log.begin_sync(syncs.begin, told), "the first sync has to write a checkpoint, too"
        log.sync()
        assert not log.begin_sync(syncs.begin, told), "nothing is there to sync"
        append(log, 2)
        assert log.is_short(100, NOW)
        assert log.begin_sync(syncs.begin, told)
        assert not log.is_short(100, NOW)
        assert not log.begin_sync(syncs.begin, told), "one is under way"
        assert log.synced_offset == 3
        append(log, 1)  # not covered
        assert await told.until(1) == [5]
        assert log.synced_offset == 5
        assert not log.is_synced
        log.sync()
        assert log.synced_offset == 6
        log.close()


@trio_test
async def test_a_failed_short_sync_ends_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: File) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with threads() as syncs:
        log, told = opened(tmp_path / "t-0", ROOMY), Told()
        append(log, 1)
        log.sync()
        append(log, 1)
        with monkeypatch.context() as failing:
            failing.setattr(File, "fdatasync", fail)
            assert log.begin_sync(syncs.begin, told)
            [error] = await told.until(1)
        assert isinstance(error, StorageError)
        assert log.synced_offset == 1
        with pytest.raises(StorageError, match="a sync failed"):
            append(log, 1)
        with pytest.raises(StorageError, match="a sync failed"):
            log.sync()
        assert not log.begin_sync(syncs.begin, told)
        log.close()


@trio_test
async def test_another_sync_waits_for_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have nothing to do, and would say that all is on disk."""
    go_on, fdatasync = threading.Event(), File.fdatasync

    def slow(file: File) -> None:
        assert go_on.wait(30)
        fdatasync(file)

    async with threads() as syncs:
        log, told, other = opened(tmp_path / "t-0", ROOMY), Told(), Told()
        append(log, 1)
        log.sync()
        append(log, 1)
        monkeypatch.setattr(File, "fdatasync", slow)
        assert log.begin_sync(syncs.begin, told)
        async with trio.open_nursery() as nursery:

            async def sync() -> None:
                other(await trio.to_thread.run_sync(log.sync))

            nursery.start_soon(sync)
            await trio.sleep(0.05)
            assert not other.results
            go_on.set()
        assert await told.until(1) == other.results == [2]
        log.close()


@trio_test
async def test_a_new_segment_needs_a_whole_sync(tmp_path: Path) -> None:
    async with threads() as syncs:
        log, told = opened(tmp_path / "t-0"), Told()
        append(log, 1)
        log.sync()
        assert not log.is_short(1000, NOW)
        while len(log.segments) == 1:
            append(log, 1)
        assert not log.begin_sync(syncs.begin, told)
        log.sync()
        append(log, 1)
        assert log.begin_sync(syncs.begin, told)
        assert await told.until(1) == [log.end_offset]
        log.close()
