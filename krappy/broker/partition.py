"""One partition as the broker owns it: its log, its place in the views, who waits for it.

Offsets, from low to high: `start_offset` (oldest readable) <= `applied` (the view includes everything below)
<= `high_watermark` (readable: on disk, acknowledged) <= `log.end_offset` (written).
All methods run on the event loop; what may block for the disk goes to a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from krappy.batch import Columns
from krappy.broker import appender
from krappy.broker.appender import Appender
from krappy.broker.applier import Applier
from krappy.broker.queued import Accepted, Stored
from krappy.entry import entry_offset
from krappy.errors import KrappyError, OffsetOutOfRange, UnknownTopic, ViewDisabled
from krappy.topic_config import TopicConfig
from krappy.types import Record, Span
from krappy.waiting import Later, Signal

if TYPE_CHECKING:
    from krappy.store.log import Log
    from krappy.store.views import Views


class Services(Protocol):
    """What a partition needs of its broker."""

    views: Views
    fsync: bool
    disk_limiter: trio.CapacityLimiter

    def now_ms(self) -> int: ...
    def spawn(self, run: Callable[[], Any]) -> None: ...
    def report(self, event: str, **facts: Any) -> None: ...


class Partition:
    def __init__(self, services: Services, topic: str, index: int, number: int, config: TopicConfig, log: Log) -> None:
        self._services = services
        self.topic = topic
        self.index = index
        self.number = number  # dense, broker-wide: the prefix of this partition's keys in the views
        self.config = config
        self.log = log
        self.views = services.views
        self.epoch = 0  # leader epoch: one broker leads for ever, until there are several
        self.high_watermark = log.end_offset
        self.moved = Signal()  # the high watermark went up, or the partition went away
        self.writing = trio.Lock()  # held by whoever changes the log's segments: a drain, housekeeping
        self.gone: KrappyError | None = None
        self.appender = Appender(self)
        self.applier = Applier(self, self._first_unapplied())

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- what the broker lends it

    @property
    def fsync(self) -> bool:
        return self._services.fsync

    @property
    def disk_limiter(self) -> trio.CapacityLimiter:
        return self._services.disk_limiter

    def now_ms(self) -> int:
        return self._services.now_ms()

    def spawn(self, run: Callable[[], Any]) -> None:
        self._services.spawn(run)

    def report(self, event: str, error: KrappyError) -> None:
        self._services.report(event, partition=str(self), error=str(error))

    # --- publish

    def publish(self, data: bytes | memoryview, expect: Sequence[tuple[int, int]] | None = None) -> Later[Stored]:
        """Appends one RecordBatch v2. Raises what is wrong with it; the rest comes through the Later."""
        self._alive()
        return self.appender.publish(data, expect)

    def publish_record(self, record: Record, expect: int | None = None) -> Later[Stored]:
        self._alive()
        return self.appender.publish_record(record, expect)

    def committed(self, accepted: list[Accepted]) -> None:
        """The appender's word that these batches are durable: they become readable here."""
        self.high_watermark = accepted[-1].end
        if self.config.view:
            self.applier.committed(accepted)
        else:
            self.applier.applied = self.high_watermark
        self.moved.fire()

    # --- read

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    def read_now(self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None) -> Span:
        """Whole batches from `offset` up to the high watermark, from the page cache alone.

        Raises BlockingIOError when the disk would have to be waited for, OffsetOutOfRange outside the log.
        """
        self._readable(offset)
        if offset >= self.high_watermark:
            return Span(b"", offset, 0)
        bound = self._limit(limit)
        return self.log.read_span(offset, max_bytes, limit=bound, max_records=max_records, nowait=True)

    async def read(self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None) -> Span:
        """As `read_now`, waiting for the disk in a thread when it must."""
        try:
            return self.read_now(offset, max_bytes, limit, max_records)
        except BlockingIOError:
            bound = self._limit(limit)
            return await trio.to_thread.run_sync(
                lambda: self.log.read_span(offset, max_bytes, limit=bound, max_records=max_records),
                limiter=self.disk_limiter,
            )

    async def offset_at(self, timestamp: int) -> int:
        """The offset of the first event with a timestamp (ms) of at least `timestamp`, else the high watermark."""
        self._alive()
        found = await trio.to_thread.run_sync(self.log.find_timestamp, timestamp, limiter=self.disk_limiter)
        return self.high_watermark if found is None else min(found[0], self.high_watermark)

    async def offset_for(self, start: str, start_at: int | None) -> int:
        """Turns a start as the protocol names it into an offset. Raises OffsetOutOfRange."""
        if start == "earliest":
            return self.start_offset
        if start == "latest":
            return self.high_watermark
        assert start_at is not None
        if start == "timestamp":
            return await self.offset_at(start_at)
        self._readable(start_at)
        return start_at

    def _limit(self, limit: int | None) -> int:
        return self.high_watermark if limit is None else min(limit, self.high_watermark)

    def _readable(self, offset: int) -> None:
        self._alive()
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {self.start_offset} to {self.high_watermark}",
                start=self.start_offset,
                end=self.high_watermark,
            )

    def _alive(self) -> None:
        if self.gone is not None:
            raise self.gone

    # --- the view

    @property
    def applied(self) -> int:
        return self.applier.applied

    @property
    def expired_below(self) -> int:
        """Entries with a lower offset are absent: their events have expired under cleanup.policy=delete."""
        return 0 if self.config.compact else self.start_offset

    def view_ready(self, min_offset: int | None) -> bool:
        """Whether the view includes all that is committed now (or `min_offset`). Raises ViewDisabled."""
        self._alive()
        if not self.config.view:
            raise ViewDisabled(f"the topic '{self.topic}' keeps no view: it has view.enable=false")
        if self.applier.failed is not None:
            raise self.applier.failed
        target = self.high_watermark if min_offset is None else min_offset + 1
        return self.applier.applied >= target

    async def view_wait(self, min_offset: int | None, seconds: float) -> bool:
        """Waits for `view_ready`. False when `seconds` passed first."""
        target = self.high_watermark if min_offset is None else min_offset + 1
        return self.view_ready(min_offset) or await self.applier.caught_up(target, seconds)

    def look_up(self, key: bytes) -> bytes | None:
        """The packed entry of a key, or None. The caller has waited for the view."""
        return self._living(self.views.get(self.number, key))

    def look_up_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self.views.get_many(self.number, keys)
        if self.expired_below:
            return [self._living(entry) for entry in found]
        return found

    def _living(self, entry: bytes | None) -> bytes | None:
        if entry is not None and self.expired_below and entry_offset(entry) < self.expired_below:
            return None
        return entry

    def check_expected(self, columns: Columns, expect: Sequence[tuple[int, int]], overlay: dict[bytes, int]) -> None:
        """Raises OffsetMismatch, or ViewDisabled: a condition is decided by the view."""
        if expect:
            self.view_ready(0)
        appender.check_expected(columns.keys, expect, overlay, self.look_up)

    # --- life

    def _first_unapplied(self) -> int:
        """Where folding goes on after a restart.

        A view that has seen events which the log does not have any more (a power loss with durability "os", a
        damaged disk) is dropped and folded anew, because the log is the truth. That is on disk before the log grows
        again: a view that a crash brought back could not be told from one that is right.
        """
        if not self.config.view:
            return self.high_watermark
        applied, lost = self.views.applied(self.number), self.log.recovery.lost_offsets
        if applied > self.log.end_offset or (applied and lost):
            end = self.log.end_offset
            self._services.report("view_ahead_of_log", partition=str(self), applied=applied, end=end, lost=lost)
            self.views.drop(self.number)
            self.views.flush()
            applied = 0
        return max(applied, self.log.start_offset)

    async def configure(self, config: TopicConfig) -> None:
        """Takes new settings. Turning the view on folds the whole log; turning it off drops the view."""
        before, self.config = self.config, config
        self.log.config = config
        if before.view == config.view:
            return
        self.applier.stop()
        await self.applier.idle.wait()
        self.views.drop(self.number)
        self.applier = Applier(self, self.log.start_offset if config.view else self.high_watermark)
        self.applier.start()

    async def close(self, error: KrappyError | None = None) -> None:
        """Ends it: what waits to be written is written, the view catches up, files are left clean.

        With an `error`, which everybody gets from now on, the files are left to `destroy`: a full disk, where nothing
        can be left clean, must not keep a topic from being deleted.
        """
        self.appender.close(error)
        await self.appender.idle()
        await self.applier.finish()
        if error is not None:
            self.gone = error
            self.moved.fire()
            return
        if self.config.view and self.applier.failed is None:
            self.applier.persist()
        await trio.to_thread.run_sync(self.log.close, limiter=self.disk_limiter)

    async def destroy(self) -> None:
        """Deletes it: files and view."""
        await self.close(UnknownTopic(f"the topic '{self.topic}' was deleted"))
        try:
            self.views.drop(self.number)
        finally:
            await trio.to_thread.run_sync(self.log.destroy, limiter=self.disk_limiter)
