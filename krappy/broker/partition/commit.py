"""Group commit: accepted batches are written to disk, then become readable, then are acknowledged.

A small write is done on the event loop while no sync is under way, and then a thread that does nothing else syncs
(sync_threads.py). Where more has to be done than one fdatasync, or the disk is slow, a small write and its sync share
one call in a worker thread. A large write is always made in one, and does not wait for the sync of the one before: it
is written while that sync runs. A sync covers everything written before it began. A batch is on this broker's disk once
a sync has covered it (with durability "os": once it is written). It becomes readable, and is acknowledged, once all
replicas in sync have it on disk: `Replica.replicas` has the high watermark. A producer that asked for less (Kafka's
acks=1) is answered once its batch is on this broker's disk, even while too few replicas are in sync.

A failed sync has lost what it covered (fsyncgate): the log takes no more appends, and all waiting publishes fail. A
sync that could not begin, for want of a file descriptor or of the folder, is tried again, and publishes go on waiting.

A sync may hang for minutes. If another log takes the place of its log meanwhile, nothing waits for it any more, and how
it ends concerns nobody.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.partition.pending import Pending
from krappy.broker.partition.replica import Replica
from krappy.broker.sync_threads import LONG
from krappy.core.cluster.roles import Role
from krappy.errors import KrappyError, NotEnoughReplicas, NotLeader, StorageError
from krappy.ports import StoredAt
from krappy.records.batch import BatchHeader
from krappy.waiting import Later, wait_any

if TYPE_CHECKING:
    from krappy.store.log import Log

TOGETHER = 256 << 10  # bytes up to which a write and its sync share a thread call
INLINE = 64 << 10  # bytes up to which a write is done on the event loop
# Seconds that the last sync took, up to which a small write is done on the event loop: it may have to wait for the sync
# of another file, whose journal it shares.
QUICK = 0.005
MAX_WAITING = 32 << 20  # bytes that may be written and not committed
RETRY_S = 0.1  # pause after a sync that could not begin


class RefusedCondition(NamedTuple):
    """A batch that was refused because of what was written before the offset `end`."""

    end: int
    item: Pending
    error: KrappyError


class GroupCommit:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._waiting: deque[Pending] = deque()  # appended, and not committed yet
        self._bytes = 0  # of these
        self._alone: deque[Pending] = deque()  # appended and not synced yet, of producers that asked for a sync only
        # Retries whose original is not committed yet; or, if they asked for a sync only (True), not on this disk yet.
        self._again: list[tuple[int, Later[StoredAt], StoredAt, bool]] = []
        self._refused: list[RefusedCondition] = []  # refusals because of what is not committed yet
        self._appended = self._durable = 0  # offsets: the end of what was written, and of what a sync has covered
        self._syncing: Log | None = None  # the log of which a sync is under way
        self._is_short = False  # this sync is one fdatasync
        self._took = math.inf  # seconds; the last sync
        self._failed: object = None  # the log of which it was reported that it has failed

    async def ready(self, size: Callable[[], int]) -> None:
        """Returns when batches of `size()` bytes should be written. Small ones do best to wait for the end of a short
        sync: the one after it covers them all."""
        if self._is_short:
            await wait_any([self._replica.landed], lambda: not self._is_short or size() > INLINE)

    async def write(
        self, accepted: list[Pending], epoch: int, refused: Iterable[tuple[Pending, KrappyError]] = ()
    ) -> None:
        """Appends these batches, which were accepted in this leader epoch. Returns when the next may be written. The
        batches' Laters are set later: once they are committed, or with the error.
        `refused`: other batches, which were refused because of these. Their refusal is told once the last of these is
        committed. If that never is, nobody knows whether it was right to refuse them."""
        replica = self._replica
        size = sum(item.header.size for item in accepted)
        synced = None
        try:
            if replica.writing.locked():
                await replica.writing.acquire()
            else:  # `acquire` would give all other tasks their turn first
                replica.writing.acquire_nowait()
            try:
                replica.check_leads(epoch)
                if not all(item.alone for item in accepted):
                    replica.replicas.check_enough(replica)
                if size <= INLINE and (not replica.fsync or self._is_quick(size)):
                    self._append(accepted, sync=False)
                else:
                    together = replica.fsync and size <= TOGETHER and not self._waiting
                    synced = await trio.to_thread.run_sync(
                        lambda: self._append(accepted, sync=together), limiter=replica.disk_limiter
                    )
            finally:
                replica.writing.release()
        except (NotLeader, NotEnoughReplicas) as error:
            _reject((*accepted, *(item for item, _ in refused)), error)
            return
        except (OSError, StorageError) as error:
            refusal = error if isinstance(error, StorageError) else StorageError(f"{replica}: {error}")
            self.tell(refusal)
            _reject((*accepted, *(item for item, _ in refused)), refusal)
            return
        self._refused += [RefusedCondition(accepted[-1].end, *each) for each in refused]
        self._await(accepted, size)
        self._appended = accepted[-1].end
        replica.appended(accepted)
        if synced is not None:
            self._synced(*synced)
            return
        if not replica.fsync:
            self._synced_to(self._appended)
            return
        if self._appended <= self._durable:  # a sync ended while the write's thread came back: no other sync comes
            self._synced_to(self._durable)
        elif self._syncing is None:
            self._begin_sync()
        if self._bytes > MAX_WAITING:
            await wait_any([replica.landed, replica.moved], lambda: self._bytes <= MAX_WAITING)
        if not replica.replicas.enough:  # none of them counts in `_bytes`
            await self.on_disk()

    def _await(self, appended: list[Pending], size: int) -> None:
        """Takes what was appended just now. While too few replicas are in sync nothing is committed: then batches that
        wait for that are refused, and the view reads the others from the log later."""
        replica = self._replica
        self._alone.extend(item for item in appended if item.alone)
        if replica.replicas.enough:
            self._waiting.extend(appended)
            self._bytes += size
        else:
            error = replica.replicas.too_few(replica)
            _reject((item for item in appended if not item.alone), error)
            self._refuse_all(error)

    def _append(self, accepted: list[Pending], *, sync: bool) -> tuple[int, float] | None:
        """Gives the result of `_sync_log` if that has synced."""
        replica = self._replica
        log = replica.log
        log.append([(item.header, item.data) for item in accepted], replica.epoch, replica.later_ms())
        synced = self._sync_log(log) if sync else None
        return None if isinstance(synced, StorageError) else synced

    def _sync_log(self, log: Log) -> tuple[int, float] | StorageError:
        """Syncs. Gives (the offset before which all is durable, seconds it took), or why the sync could not begin."""
        syncs, began = self._replica.syncs, perf_counter()
        try:
            with nullcontext() if syncs is None else syncs.timed():
                return log.sync(), perf_counter() - began
        except StorageError as error:
            if log.broken:
                raise
            return error

    def _is_quick(self, size: int) -> bool:
        """Whether a write of `size` bytes and the begin of its sync hold up the event loop for a moment only."""
        replica = self._replica
        return self._took <= QUICK and self._may_be_short and replica.log.is_short(size, replica.later_ms())

    @property
    def _may_be_short(self) -> bool:
        """Whether the disk lets the event loop begin a sync, and do the little that comes at its end. A disk that has
        become slow is seen in any partition's sync."""
        syncs = self._replica.syncs
        return syncs is not None and self._took <= LONG and not syncs.are_long

    def _begin_sync(self) -> None:
        """Syncs what was written. No sync is under way."""
        replica = self._replica
        self._syncing = log = replica.log
        if replica.syncs is not None and self._may_be_short:
            done = partial(self._end_sync, log, replica.epoch, perf_counter())
            self._is_short = log.begin_sync(replica.syncs.begin, done)
        if not self._is_short:
            replica.spawn(partial(self._sync, log))

    def _end_sync(self, log: Log, epoch: int, began: float, result: int | StorageError) -> None:
        """The short sync of this log that began in this leader epoch has ended."""
        if self._syncing is not log:
            return
        self._is_short = False
        try:
            if isinstance(result, StorageError):
                self._fail(result)
            elif self._replica.epoch == epoch:  # else what it covered may have been cut since
                self._synced(result, perf_counter() - began)
        except BaseException as error:
            self._fail(StorageError(f"{self._replica}: {error!r}"))
            raise
        finally:
            self._syncing = None
            if self._durable < self._appended:
                self._begin_sync()
            self._replica.landed.fire()

    def _synced(self, durable: int, seconds: float) -> None:
        self._took = seconds
        self._replica.measures.syncs.observe(seconds)
        self._synced_to(durable)

    async def _sync(self, log: Log) -> None:
        replica = self._replica
        try:
            while self._syncing is log and self._durable < self._appended:
                epoch = replica.epoch
                synced = await trio.to_thread.run_sync(partial(self._sync_log, log), limiter=replica.disk_limiter)
                if self._syncing is not log:
                    return
                if isinstance(synced, StorageError):
                    replica.report("sync_waits", synced)
                    await trio.sleep(RETRY_S)
                elif replica.epoch == epoch:  # else what it covered may have been cut since
                    self._synced(*synced)
        except BaseException as error:
            if self._syncing is log:
                self._fail(error if isinstance(error, KrappyError) else StorageError(f"{replica}: {error!r}"))
            if not isinstance(error, KrappyError):
                raise
        finally:
            if self._syncing is log:
                self.forget_sync()

    def forget_sync(self) -> None:
        """No sync is under way; or it is one of a log whose place another log has taken."""
        self._syncing, self._is_short = None, False
        self._replica.landed.fire()

    def _synced_to(self, offset: int) -> None:
        """Everything before `offset` is on this broker's disk. That may be more than `_appended`: a thread may have
        written what nobody here knows of yet. This can't be committed: it may belong to an open transaction."""
        self._durable = offset
        self._replica.synced(min(offset, self._appended))
        self.settle()
        while self._alone and self._alone[0].end <= offset:
            self._alone.popleft().resolve()
        self._replica.landed.fire()

    def settle(self) -> None:
        """Everything before the high watermark of the replica set is committed: it becomes readable, and is
        acknowledged."""
        replica = self._replica
        committed = replica.replicas.high_watermark
        done: list[Pending] = []
        while self._waiting and self._waiting[0].end <= committed:
            done.append(self._waiting.popleft())
        if committed > replica.high_watermark:
            replica.committed(committed, done)
        if done:
            size = sum(item.header.size for item in done)
            self._bytes -= size
            replica.measures.appended_bytes += size
            replica.measures.appended_events += done[-1].end - done[0].offset
            for item in done:
                item.resolve()
        if self._refused:
            refused, self._refused = self._refused, []
            for end, item, error in refused:
                if end <= committed:
                    item.reject(error)
                else:
                    self._refused.append(RefusedCondition(end, item, error))
        if self._again:
            again, self._again = self._again, []
            for each in again:
                offset, later, stored, alone = each
                if offset < (self._durable if alone else committed):
                    later.resolve(stored)
                else:
                    self._again.append(each)

    def begin(self) -> None:
        """This broker leads, and all of its log is on its disk."""
        self._appended = self._durable = self._replica.log.end_offset
        self._replica.synced(self._durable)
        self.settle()

    def end(self, error: KrappyError) -> None:
        """Nothing that waits will be committed by this broker, or known to be on its disk: all of it gets this
        error."""
        waiting, alone, again = self._waiting, self._alone, self._again
        self._waiting, self._alone, self._again = deque(), deque(), []
        self._bytes = self._appended = self._durable = 0
        _reject((*waiting, *alone), error)
        self._refuse_all(error)
        for _, later, *_ in again:
            later.reject(error)
        self._replica.landed.fire()

    def refuse(self, error: KrappyError) -> None:
        """Nothing is committed for now: what waits for that gets this error. It stays in the log, and may be committed
        later."""
        waiting, again = self._waiting, self._again
        self._waiting, self._again = deque(), [each for each in again if each[3]]
        self._bytes = 0
        _reject((item for item in waiting if not item.alone), error)
        self._refuse_all(error)
        for _, later, _, alone in again:
            if not alone:
                later.reject(error)
        self._replica.landed.fire()

    def _refuse_all(self, error: KrappyError) -> None:
        refused, self._refused = self._refused, []
        _reject((item for _, item, _ in refused), error)

    def tell(self, error: KrappyError) -> None:
        """Counts the failure, and reports it for the operator. That a log takes no more appends is reported once. The
        publishers get the error from the caller."""
        replica = self._replica
        replica.measures.appends_failed += 1
        if not replica.log.broken:
            replica.report("append_failed", error)
        elif self._failed is not replica.log:
            self._failed = replica.log
            replica.report("log_failed", error)

    def _fail(self, error: KrappyError) -> None:
        self.tell(error)
        self.end(error)

    def answer_again(self, offset: int, header: BatchHeader, later: Later[StoredAt], *, alone: bool = False) -> None:
        """Answers a retry with its original's offset, once the original is committed; with `alone`, once it is on this
        broker's disk."""
        stored = StoredAt(offset, header.max_timestamp, duplicate=True)
        if offset < max(self._replica.high_watermark, self._durable if alone else 0):
            later.resolve(stored)
        elif self._replica.log.broken:  # no sync will cover it any more
            later.reject(StorageError(self._replica.log.broken))
        elif self._replica.role is not Role.LEADER:  # this broker will not learn whether that is committed
            later.reject(self._replica.deposed())
        else:
            self._again.append((offset, later, stored, alone))

    async def on_disk(self) -> None:
        """Returns when no batch is being written or synced."""
        await wait_any([self._replica.landed], lambda: self._syncing is None and self._durable >= self._appended)

    async def settled(self) -> None:
        """Returns when no batch waits for its commit, which a sync brings, or a follower's fetch."""
        await wait_any([self._replica.landed, self._replica.moved], lambda: not self._waiting and self._syncing is None)


def _reject(items: Iterable[Pending], error: KrappyError) -> None:
    for item in items:
        item.reject(error)
