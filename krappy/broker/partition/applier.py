"""Folding a partition's log into its view.

The applier follows the last stable offset. Fresh batches come with their columns already decoded. Older ones are read
from the log, after a restart too: live path and recovery are one loop. Once a transaction is decided, its batches are
always read from the log; aborted ones are left out. Other tasks have their turn after `SLICE` records.
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
from krappy.broker.partition.pending import work
from krappy.broker.partition.strays import ViewStrays
from krappy.entries.entry import pack_columns
from krappy.errors import CorruptBatch, KrappyError, OffsetOutOfRange, ShuttingDown, StorageError
from krappy.records import batch as batches
from krappy.records.batch import RECORD_COST, TRANSACTIONAL, Columns
from krappy.store.disk import UNREADABLE
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.partition.pending import Pending
    from krappy.broker.partition.replica import Replica

SLICE = 1000  # records folded in one turn
SLICE_BYTES = 1 << 20  # or bytes of their keys and values
# Bytes of memory for one partition's decoded batches that wait to be applied. Beyond that, or where all partitions
# together hold more than `measures.kept_limit`, batches are read from the log.
KEPT = 24 << 20
PLACE = 256  # bytes counted for each batch: behind an open transaction there may be very many
RECORD = 100  # bytes counted for each record, in addition to the batch's `cost`
READ = 1 << 20
LINGER = 0.003  # seconds before folding begins, unless somebody waits for it: acknowledgements come first
HURRY = 64 << 10  # from so many bytes on, folding begins at once
PATIENCE = 5.0  # seconds for which a broker that stops goes on folding; the next start folds the rest
RETRY_S = 1.0  # pause after the disk refused an apply
UNREAD = 10  # failed reads of the log in a row that count as damage to it


class Applier:
    def __init__(self, replica: Replica, strays: ViewStrays, applied: int) -> None:
        self._replica = replica
        self.applied = applied  # the next offset to fold in: everything below is in the view
        self.strays = strays
        # Base offset, number of records, columns (None: no record has a key), the work that it takes, bytes in memory.
        self._fresh: deque[tuple[int, int, Columns | None, int, int]] = deque()
        self._kept = 0
        self._lag = 0  # work (see `Pending.work`) decided and not applied yet, about
        self._undecided = 0  # the same, of what is committed and behind the last stable offset
        self._stable = replica.last_stable_offset
        self._running = False
        self.failed: KrappyError | None = None
        self._unread = 0  # failed reads of the log in a row
        self._stopped: KrappyError | None = None  # why it was stopped
        self._closing = False
        self._until = math.inf  # the time on trio's clock until which it folds
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

    def committed(self, accepted: Sequence[Pending]) -> None:
        """Takes batches that have just become readable."""
        self.strays.committed(accepted)
        for item in accepted:
            self._undecided += item.work
            columns = item.columns
            if (
                columns is None
                or item.header.attributes & TRANSACTIONAL
                or self._kept >= KEPT
                or self._over is not None
            ):
                continue
            kept = PLACE
            if columns.keys.count(None) == len(columns.keys):  # nothing to fold: only the offsets are needed
                columns = None
            else:
                kept += item.cost + item.header.count * RECORD
            if self._replica.measures.kept_bytes + kept > self._replica.measures.kept_limit:
                continue
            self._keep(kept)
            self._fresh.append((item.offset, item.header.count, columns, item.work, kept))
        if self._stable != (stable := self._replica.last_stable_offset):
            self._stable = stable
            self._lag += self._undecided
            self._undecided = 0
        if not self._running and self._fresh and self._fresh[0][2] is None:
            self._pass_over()
        self.start()
        if self._lag > HURRY:
            self._wanted.set()

    def _keep(self, count: int) -> None:
        """Counts `count` more bytes of memory; fewer when it is negative."""
        self._kept += count
        self._replica.measures.kept_bytes += count

    def _forget(self) -> None:
        """Drops the batches in memory, which will not be applied."""
        self._fresh.clear()
        self._keep(-self._kept)

    def _pass_over(self) -> None:
        """Moves on at once behind the first batches whose events have no keys: that needs no task."""
        stable = self._replica.last_stable_offset
        while self._fresh:
            base, count, columns, _, kept = self._fresh[0]
            if columns is not None or base > self.applied or base + count > stable:
                break
            self._fresh.popleft()
            self._keep(-kept)
            self.applied = max(self.applied, base + count)
        if not self.behind:
            self._lag = 0
        self.moved.fire()

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
        """Ends folding, since the view is turned off or the topic deleted. Tasks that wait for it get the error."""
        self._stopped = why
        self._lag = 0
        self._forget()
        self._wanted.set()
        self.moved.fire()

    async def caught_up(self, offset: int | None = None, seconds: float = math.inf) -> bool:
        """Waits until the view has everything before `offset` (by default the present last stable offset). False when
        `seconds` passed first. Raises why it never will: CorruptBatch, the error of `stop`, ShuttingDown."""
        target = self._replica.last_stable_offset if offset is None else offset
        self._wanted.set()
        done = await wait_any([self.moved], lambda: self.applied >= target or self._over is not None, seconds)
        if (over := self._over) is not None and (self.applied < target or self.stopped):
            raise over
        return done

    async def within(self, lag: int) -> None:
        """Waits until at most so much work (see `Pending.work`) waits to be applied."""
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
                    # Events that can't be read can't be folded. Lookups in this partition fail with the same error,
                    # which names the file and the position. Everything else goes on.
                    self.failed = error
                    replica.report("view_failed", error)
                    break
                except ShuttingDown:
                    break
                except StorageError as error:
                    # For example a full disk: RocksDB goes on by itself once there is room, and so does this.
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
        """Counts failed reads of the log. After `UNREAD` in a row the log counts as damaged, so that nobody waits for
        the view. Reads are still tried: a disk that is away for a while gives the same error as a bad sector."""
        cause = error.__cause__
        self._unread = self._unread + 1 if isinstance(cause, OSError) and cause.errno in UNREADABLE else 0
        if self._unread == UNREAD:
            self.failed = CorruptBatch(error.text)
            self._replica.report("view_failed", self.failed)
            self._forget()
            self._lag = 0
            self.moved.fire()

    async def _step(self) -> None:
        # Events that were deleted before they were decided are not folded, even from memory: as after a restart.
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
        """From now on it gives up when the disk refuses, and after `PATIENCE`: folding a whole log must not keep a
        broker from stopping. `await finish()` waits for its end."""
        if not self._closing:
            self._closing = True
            self.strays.close()
            self._until = trio.current_time() + PATIENCE
        self._wanted.set()
        self.moved.fire()

    async def finish(self) -> None:
        """Ends, after catching up if that does not take long."""
        self.close()
        await self.idle.wait()

    @property
    def _given_up(self) -> bool:
        return self._closing and not self._running

    @property
    def _over(self) -> KrappyError | None:
        """Why nothing more will be folded; None if more may be folded."""
        found = self.failed or self._stopped
        if found is None and self._given_up:
            return ShuttingDown("the broker stops before the view has caught up")
        return found

    async def _apply_fresh(self) -> None:
        """Applies one slice of the batches in memory: several small batches, or a part of a large one."""
        entries: dict[bytes, bytes] = {}
        count = done = held = 0
        applied = self.applied
        stable = self._replica.last_stable_offset
        # A gap is filled from the log. Undecided events wait. The log may now start in the middle of the first batch.
        while self._fresh and self._fresh[0][0] <= applied < stable and count < SLICE and held < SLICE_BYTES:
            base, total, columns, size, kept = self._fresh[0]
            if columns is None:
                applied = max(applied, base + total)
                done += size
                self._fresh.popleft()
                self._keep(-kept)
                continue
            start = applied - base
            stop = min(total, start + SLICE - count)
            if kept - total * (RECORD + RECORD_COST) > SLICE_BYTES:
                stop = _slice_end(columns, start, stop)
            if start < stop:
                entries.update(_packed(columns, range(base, base + total), start, stop))
                count += stop - start
                held += kept * (stop - start) // total
                applied = base + stop
            if stop >= total:
                self._fresh.popleft()
                self._keep(-kept)
                done += size
        await self._store(entries, applied, count, held)
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
            return  # the log start moved past it meanwhile: those events need no folding any more
        if not data:
            self.applied = max(self.applied, stop_at)
            return
        for header, view in batches.split(data):
            if header.next_offset <= self.applied:
                continue
            done = header.size
            if not header.is_control:
                async with large.decoded(view, f"topic {replica.topic}") as columns:
                    done = work(done, columns.keys)
                    await self._apply_columns(columns)
            self.applied = max(self.applied, header.next_offset)
            self._lag = max(0, self._lag - done)
            self.moved.fire()

    async def _apply_columns(self, columns: Columns) -> None:
        """Applies the records of a batch that are not in the view yet, a slice at a time."""
        offsets = columns.offsets
        start = bisect_left(offsets, self.applied)
        while start < len(offsets) and not self.stopped:
            stop = _slice_end(columns, start, min(len(offsets), start + SLICE))
            await self._store(_packed(columns, offsets, start, stop), offsets[stop - 1] + 1, stop - start)
            start = stop
            await trio.lowlevel.checkpoint()

    async def _store(self, entries: dict[bytes, bytes], applied: int, events: int, size: int | None = None) -> None:
        """`size`: about the bytes that the entries and their keys take in memory; None: not known."""
        if entries:
            await self._room()
            await self.strays.look_ahead(entries.keys(), applied)
            kept = self.strays.applying(entries.keys(), applied)
            self._replica.views.apply(self._replica.number, entries, applied, strays=kept, events=events, size=size)
            self.strays.applied(applied)
        self.applied, self.failed = applied, None  # together: what made it fail is over

    async def _room(self) -> None:
        """Waits while RocksDB's flushes are behind. A write would block then, on a full disk for long."""
        waited = 0.0
        while self._replica.views.busy():
            if self.stopped or (self._closing and waited > PATIENCE):
                raise StorageError("the view is closed while RocksDB is behind with writing its files")
            await trio.sleep(0.005)
            waited += 0.005

    def persist(self) -> None:
        """Stores the applied offset, so that keyless batches at the end are not read again."""
        self.take_out(())

    def take_out(self, keys: Sequence[bytes]) -> None:
        """Removes these keys from the view."""
        kept = self.strays.applying((), self.applied)
        self._replica.views.apply(self._replica.number, {}, self.applied, keys, kept)
        if keys:
            self.strays.taken_out()


def _slice_end(columns: Columns, start: int, most: int) -> int:
    """The end of a slice of a batch's records that begins at `start`: `most`, or after about `SLICE_BYTES`."""
    sizes = [
        len(key or b"") + len(value or b"")
        for key, value in zip(columns.keys[start:most], columns.values[start:most], strict=True)
    ]
    if sum(sizes) <= SLICE_BYTES:
        return most
    return start + 1 + next(row for row, size in enumerate(accumulate(sizes)) if size > SLICE_BYTES)


def _packed(columns: Columns, offsets: object, start: int, stop: int) -> dict[bytes, bytes]:
    return pack_columns(offsets, columns.timestamps, columns.keys, columns.values, columns.headers, start, stop)  # type: ignore[arg-type]
