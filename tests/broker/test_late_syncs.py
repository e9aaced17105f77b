"""A sync that hangs for so long that another log has taken the place of its log when it ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker import sync_threads
from krappy.broker.partition import commit
from krappy.broker.partition.commit import TOGETHER
from krappy.broker.partition.follower import Follower
from krappy.broker.partition.partition import Partition
from krappy.broker.partition.replica import Standing
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.errors import NotLeader, StorageError
from krappy.records import batch
from krappy.store.disk import Buffer, File
from krappy.store.log import Log
from tests.broker.engine import publish, running, until

EIO = OSError(errno.EIO, "the disk is broken")


class BrokenDisk:
    """Syncs of one file hang until `go_on` is set. If it `fails`, they fail then. Nothing else can be done with that
    file, either."""

    def __init__(self, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, self._fdatasync, self._write, self._truncate = file, File.fdatasync, File.write, File.truncate
        self.hangs, self.go_on, self.fails = threading.Event(), threading.Event(), False
        monkeypatch.setattr(File, "fdatasync", lambda file: self.fdatasync(file))
        monkeypatch.setattr(File, "write", lambda file, *given: self.write(file, *given))
        monkeypatch.setattr(File, "truncate", lambda file, size: self.truncate(file, size))

    def fdatasync(self, file: File) -> None:
        if file is self._file:
            self.hangs.set()
            assert self.go_on.wait(20)
            if self.fails:
                raise EIO
        self._fdatasync(file)

    def write(self, file: File, buffers: Sequence[Buffer], position: int) -> None:
        if file is self._file and self.hangs.is_set():
            raise EIO
        self._write(file, buffers, position)

    def truncate(self, file: File, size: int) -> None:
        if file is self._file and self.hangs.is_set():
            raise EIO
        self._truncate(file, size)


async def lead_with_another_log(partition: Partition) -> None:
    """Opens the log of a leader anew, as FailedLogs does for one that takes no more events."""
    epoch, old = partition.epoch, partition.log
    await partition.rest()

    def reopen() -> tuple[Log, Standing]:
        old.abandon()
        log = Log.open(old.folder, partition.config)
        return log, Standing.whole(log)

    assert await Follower(partition, bytes(16), lambda _: old, 0).renew(reopen)
    state = PartitionState(0, epoch + 1, 1, (0,), min_isr=1)
    await partition.take(state, partition.state_version + 1, Role.LEADER, 0)


@pytest.mark.parametrize("fails", [False, True], ids=["it ends well", "it fails"])
@pytest.mark.parametrize("size", [1, 2 * TOGETHER], ids=["a short sync", "a sync in a worker thread"])
@trio_test
async def test_nobody_waits_for_the_sync_of_a_log_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, fails: bool
) -> None:
    for module in (commit, sync_threads):
        monkeypatch.setattr(module, "LONG", 60.0)  # on a busy machine each sync takes long
    monkeypatch.setattr(commit, "QUICK", 60.0)
    large = batch.encode(None, [b"x" * 2 * TOGETHER], timestamps=1)
    async with running(tmp_path, durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 1)
        disk = BrokenDisk(partition.log._active.file, monkeypatch)
        disk.fails = fails
        first = partition.publish(batch.encode(None, [b"x" * size], timestamps=1))
        await until(disk.hangs.is_set)
        with pytest.raises(StorageError, match="the disk is broken"):
            await partition.publish(large).wait()
        assert "can't be taken back" in partition.log_failed
        with trio.fail_after(10):
            await lead_with_another_log(partition)
            with pytest.raises(NotLeader):
                await first.wait()
            assert await publish(partition, 1) == 2, "it was written, and may have been committed elsewhere"
            monkeypatch.setattr(partition.log, "sync", lambda sync=partition.log.sync: disk.go_on.wait(20) and sync())
            monkeypatch.setattr(partition.log, "begin_sync", lambda *_: False)
            waiting = partition.publish(large)
            await until(lambda: partition.log.end_offset == 4)
            disk.go_on.set()
            assert (await waiting.wait()).offset == 3, "the end of the old sync is none of its business"
            await wait_all_tasks_blocked()
            assert (partition.high_watermark, partition.commit._durable) == (4, 4)
