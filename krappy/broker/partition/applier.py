"""Folding a partition's log into its view.

The applier follows the last stable offset: fresh batches come with their columns already decoded, anything older is
read back from the log, which is also how a restart catches up: live path and recovery are one loop. A transaction's
batches always come from the log, once it is decided, and without those that were aborted. RocksDB's
write holds the GIL, so an apply is at most `SLICE` records and yields to the event loop between.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition import large
from krappy.broker.partition.strays import ViewStrays
from krappy.entries.entry import pack_columns
from krappy.errors import CorruptBatch, KrappyError, OffsetOutOfRange, ShuttingDown, StorageError
from krappy.records import batch as batches
from krappy.records.batch import TRANSACTIONAL, Columns
from krappy.store.disk import UNREADABLE
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.partition.queued import Accepted
    from krappy.broker.partition.replica import Replica

SLICE = 500  # records of one WriteBatch
SLICE_BYTES = 1 << 20  # or bytes of their values: a slice is in memory three times over while it is written
# Bytes of memory that decoded batches of one partition take which wait to be applied; beyond, and where all partitions
# together hold more than `measures.kept_limit`, it reads the log.
KEPT = 24 << 20
PLACE = 256  # of these, reckoned for each batch: an open transaction may hold up very many,
RECORD = 100  # and for each record, beside what its admission reckoned
READ = 1 << 20
LINGER = 0.003  # seconds that a little waits for more, so that the acknowledgements come first; nobody waits for it
HURRY = 64 << 10  # bytes that do not wait
PATIENCE = 5.0  # seconds for which a broker that stops still folds; what is left then is the next start's
RETRY_S = 1.0  # pause after the disk refused an apply
UNREAD = 10  # times in a row that the disk did not read the log, until that counts as damage to it


class Applier:
    def __init__(self, replica: Replica, strays: ViewStrays, applied: int) -> None:
        self._replica = replica
        self.applied = applied  # the next offset to fold in: everything below is in the view
        self.strays = strays
        # Base offset, number of records, columns (None: no record has a key), bytes in the log, and in memory.
        self._fresh: deque[tuple[int, int, Columns | None, int, int]] = deque()
        self._kept = 0
        self._lag = 0  # bytes decided and not applied yet, about
        self._undecided = 0  # bytes committed behind the last stable offset, about
        self._stable = replica.last_stable_offset
        self._running = False
        self.failed: KrappyError | None = None
        self._unread = 0  # times in a row that the disk did not read the log
        self._stopped: KrappyError | None = None  # why nobody gets any more of it
        self._closing = False
        self._until = math.inf  # on trio's clock: it folds no longer
        self.moved = Signal()
        self._wanted = trio.Event()  # set while somebody waits for the view
        self.idle = trio.Event()
        self.idle.set()

    @property
    def stopped(self) -> bool:
        """Whether its view is being dropped, or was."""
        return self._stopped is not None

    @property
    def behind(self) -> bool:
        return self.applied < self._replica.last_stable_offset

    def committed(self, accepted: list[Accepted]) -> None:
        """Tells of batches that have just become readable."""
        self.strays.committed(accepted)
        for item in accepted:
            self._undecided += item.header.size
            columns = item.columns
            if (
                columns is None
                or item.header.attributes & TRANSACTIONAL
                or self._kept >= KEPT
                or self._over is not None
            ):
                continue
            kept = PLACE
            if columns.keys.count(None) == len(columns.keys):  # nothing to fold, and only the place to keep
                columns = None
            else:
                kept += item.cost + item.header.count * RECORD
            if self._replica.measures.kept_bytes + kept > self._replica.measures.kept_limit:
                continue
            self._keep(kept)
            self._fresh.append((item.offset, item.header.count, columns, item.header.size, kept))
        if self._stable != (stable := self._replica.last_stable_offset):
            self._stable = stable
            self._lag += self._undecided
            self._undecided = 0
        self.start()
        if self._lag > HURRY:
            self._wanted.set()

    def _keep(self, count: int) -> None:
        """So many bytes of memory more; less when it is negative."""
        self._kept += count
        self._replica.measures.kept_bytes += count

    def _forget(self) -> None:
        """Nobody will apply what is in memory."""
        self._fresh.clear()
        self._keep(-self._kept)

    def start(self) -> None:
        self.strays.applied(self.applied)
        if self.failed is not None and self.applied < self._replica.start_offset:
            self.failed = None  # the log begins behind what could not be read
        if not self._running and self.behind and self.failed is None and not self.stopped:
            self._running = True
            self.idle = trio.Event()
            self._wanted = trio.Event()
            self._replica.spawn(self._run)

    def stop(self, why: KrappyError) -> None:
        """Folds no further, since the view is turned off or its topic deleted; who waits for it is told `why`."""
        self._stopped = why
        self._lag = 0
        self._forget()
        self._wanted.set()
        self.moved.fire()

    async def caught_up(self, offset: int | None = None, seconds: float = math.inf) -> bool:
        """Waits until everything below `offset` (the last stable offset of now by default) is in the view; False when
        `seconds` passed first. Raises why it never will be: CorruptBatch, what it was stopped by, ShuttingDown."""
        target = self._replica.last_stable_offset if offset is None else offset
        self._wanted.set()
        done = await wait_any([self.moved], lambda: self.applied >= target or self._over is not None, seconds)
        if (over := self._over) is not None and (self.applied < target or self.stopped):
            raise over
        return done

    async def within(self, lag: int) -> None:
        """Waits until at most `lag` bytes wait to be applied."""
        if self._lag > lag:
            self._wanted.set()
        await wait_any([self.moved], lambda: self._lag <= lag or self.failed is not None or self._given_up)

    async def _run(self) -> None:
        replica = self._replica
        with trio.move_on_after(LINGER):
            await self._wanted.wait()
        try:
            while self.behind and not self.stopped and trio.current_time() < self._until:
                try:
                    await self._step()
                except CorruptBatch as error:
                    # The log is the truth: what can't be read can't be folded. Lookups of this partition fail with
                    # the same error, which names the file and the position; everything else goes on.
                    self.failed = error
                    replica.report("view_failed", error)
                    break
                except StorageError as error:
                    # A full disk, say: RocksDB goes on by itself once there is room, and so does this.
                    if self.stopped:
                        break
                    replica.report("view_waits", error)
                    if self._closing:
                        break
                    self._doubt(error)
                    await trio.sleep(RETRY_S)
                else:
                    self._unread, self.failed = 0, None
        finally:
            self._running = False
            if self._over is not None:
                self._forget()
            self.idle.set()
            self.moved.fire()

    def _doubt(self, error: StorageError) -> None:
        """A bad sector under the log is damage, which nobody waits for; it is tried again all the same, for a disk that
        is away for a while tells the same."""
        cause = error.__cause__
        self._unread = self._unread + 1 if isinstance(cause, OSError) and cause.errno in UNREADABLE else 0
        if self._unread == UNREAD:
            self.failed = CorruptBatch(error.text)
            self._replica.report("view_failed", self.failed)
            self._forget()
            self._lag = 0
            self.moved.fire()

    async def _step(self) -> None:
        # What was deleted before it was decided is not folded, though it may be in memory: no restart would find it.
        self.applied = max(self.applied, self._replica.log.start_offset)
        if self._fresh and self._fresh[0][0] <= self.applied:
            await self._apply_fresh()
        else:
            await self._apply_from_log()
        if not self.behind:
            self._lag = 0
        self.strays.applied(self.applied)
        self.moved.fire()

    def close(self) -> None:
        """From now on it gives up where the disk does not let it catch up, and after a while; `await finish()` for the
        end of it. Folding a whole log anew, say, must not keep a broker from stopping."""
        if not self._closing:
            self._closing = self.strays.closing = True
            self._until = trio.current_time() + PATIENCE
        self._wanted.set()
        self.moved.fire()

    async def finish(self) -> None:
        """Catches up if the disk lets it and it is not much, and ends."""
        self.close()
        await self.idle.wait()

    @property
    def _given_up(self) -> bool:
        return self._closing and not self._running

    @property
    def _over(self) -> KrappyError | None:
        """Why nothing more will be folded; None while it will."""
        found = self.failed or self._stopped
        if found is None and self._given_up:
            return ShuttingDown("the broker stops before the view has caught up")
        return found

    async def _apply_fresh(self) -> None:
        """One slice out of the batches in memory: several small ones together, or a part of a large one."""
        entries: dict[bytes, bytes] = {}
        count = done = held = 0
        applied = self.applied
        stable = self._replica.last_stable_offset
        # A gap is the log's to fill. What is not decided waits, of a batch in whose midst the log begins now too.
        while self._fresh and self._fresh[0][0] <= applied < stable and count < SLICE and held < SLICE_BYTES:
            base, total, columns, size, kept = self._fresh[0]
            if columns is None:
                applied = max(applied, base + total)
                done += size
                self._fresh.popleft()
                self._keep(-kept)
                continue
            start = applied - base
            stop = _slice_end(columns, start, min(total, start + SLICE - count))
            if start < stop:
                entries.update(_packed(columns, range(base, base + total), start, stop))
                count += stop - start
                held += kept * (stop - start) // total
                applied = base + stop
            if stop >= total:
                self._fresh.popleft()
                self._keep(-kept)
                done += size
        await self._store(entries, applied)
        self._lag = max(0, self._lag - done)
        await trio.lowlevel.checkpoint()

    async def _apply_from_log(self) -> None:
        replica = self._replica
        stop_at = replica.last_stable_offset
        if self._fresh:
            stop_at = min(stop_at, self._fresh[0][0])
        try:
            data = (await replica.read(self.applied, READ, limit=stop_at)).data
        except OffsetOutOfRange:
            return  # the log's start moved past it meanwhile, and what was there needs no folding any more
        if not data:
            self.applied = max(self.applied, stop_at)
            return
        for header, view in batches.split(data):
            if header.next_offset <= self.applied:
                continue
            if not header.is_control:
                async with large.decoded(view) as columns:
                    await self._apply_columns(columns)
            self.applied = max(self.applied, header.next_offset)
            self._lag = max(0, self._lag - header.size)
            self.moved.fire()

    async def _apply_columns(self, columns: Columns) -> None:
        """Those of a batch that are not in the view yet, a slice at a time."""
        offsets = columns.offsets
        start = bisect_left(offsets, self.applied)
        while start < len(offsets) and not self.stopped:
            stop = _slice_end(columns, start, min(len(offsets), start + SLICE))
            await self._store(_packed(columns, offsets, start, stop), offsets[stop - 1] + 1)
            start = stop
            await trio.lowlevel.checkpoint()

    async def _store(self, entries: dict[bytes, bytes], applied: int) -> None:
        if entries:
            await self._room()
            kept = self.strays.applying(entries.keys(), applied)
            self._replica.views.apply(self._replica.number, entries, applied, strays=kept)
            self.strays.applied(applied)
        self.applied = applied

    async def _room(self) -> None:
        """While flushes are behind, waits here rather than inside RocksDB. On a full disk that may be for long."""
        waited = 0.0
        while self._replica.views.busy():
            if self.stopped or (self._closing and waited > PATIENCE):
                raise StorageError("the view's files are not written as fast as it is closed")
            await trio.sleep(0.005)
            waited += 0.005

    def persist(self) -> None:
        """Writes the applied offset itself, so that keyless batches at the end are not read again."""
        self.take_out(())

    def take_out(self, keys: Sequence[bytes]) -> None:
        """These keys leave the view."""
        kept = self.strays.applying((), self.applied)
        self._replica.views.apply(self._replica.number, {}, self.applied, keys, kept)
        if keys:
            self.strays.taken_out()


def _slice_end(columns: Columns, start: int, most: int) -> int:
    """Where a slice of a batch's records from `start` on ends: at `most`, or behind the first `SLICE_BYTES`."""
    sizes = [0 if value is None else len(value) for value in columns.values[start:most]]
    if sum(sizes) <= SLICE_BYTES:
        return most
    return start + 1 + next(row for row, size in enumerate(accumulate(sizes)) if size > SLICE_BYTES)


def _packed(columns: Columns, offsets: object, start: int, stop: int) -> dict[bytes, bytes]:
    return pack_columns(offsets, columns.timestamps, columns.keys, columns.values, columns.headers, start, stop)  # type: ignore[arg-type]
