"""One partition as the broker owns it: its replica and view, what is published to it, and what is taken from its start.

Each of these stands on those before: replica.py, viewed.py, and here. Their parts are given what they stand on.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from krappy.broker.partition import raw_reads
from krappy.broker.partition.appender import Appender
from krappy.broker.partition.lent import Lent
from krappy.broker.partition.queued import StoredAt
from krappy.broker.partition.raw_reads import Raw
from krappy.broker.partition.shortening import Shortening
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed
from krappy.core.stability import marker
from krappy.errors import KrappyError
from krappy.records.batch import BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log
from krappy.types import Record
from krappy.waiting import Later


class Partition(Viewed):
    def __init__(
        self,
        lent: Lent,
        topic: str,
        index: int,
        number: int,
        config: TopicConfig,
        log: Log,
        strays: Strays[Viewed],
    ) -> None:
        super().__init__(lent, topic, index, number, config, log, strays)
        self.appender = Appender(self)
        self.shortening = Shortening(self)

    # --- publish

    def publish(
        self,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None = None,
        *,
        by_header: bool = False,
        taken: bool = False,
    ) -> Later[StoredAt]:
        """Appends one RecordBatch v2. Raises what is wrong with it; the rest comes through the Later.

        `expect`: (index of a record, the offset that its key must stand at, or ABSENT); `by_header`: they are taken
        from the records' headers (core/conditions.py); `taken`: as for `publish_record`.
        """
        self._alive()
        if not taken:
            self._lent.check_room(len(data))
        return self.appender.publish(data, expect, by_header=by_header, taken=taken)

    def publish_record(self, record: Record, expect: int | None = None, *, taken: bool = False) -> Later[StoredAt]:
        """`taken`: an event that was taken once: its timestamp is not judged again."""
        self._alive()
        if not taken:
            self._lent.check_room(len(record.value or b""))
        return self.appender.publish_record(record, expect, taken=taken)

    def publish_own(self, header: BatchHeader, data: bytes) -> Later[StoredAt]:
        """Appends a batch of a transaction of the broker's own. Raises RecordTooLarge."""
        self._alive()
        return self.appender.publish_own(header, data)

    def end_transaction(self, producer_id: int, epoch: int, commit: bool) -> Later[StoredAt]:
        """Appends the marker that ends a producer's transaction here, behind everything that was published before."""
        self._alive()
        return self.appender.publish_marker(marker(producer_id, epoch, commit, self.now_ms()))

    # --- what Kafka's consumers read

    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        """Batches as they stand in the log (`raw_reads.read_now`)."""
        return raw_reads.read_now(self, offset, max_bytes, limit, min_one=min_one)

    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        return await raw_reads.read(self, offset, max_bytes, limit, min_one=min_one)

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        """Bytes that `fetch` would bring, about."""
        return raw_reads.available(self, offset, max_bytes, limit)

    def told_earliest(self) -> int:
        """Where the log starts, for a connection that asks."""
        return self.start_offset

    def out_of_range(self) -> None:
        """A connection was told that the log does not have its offset."""

    # --- retention

    async def delete_records(self, before: int) -> int:
        """Forgets the events below the offset `before` (-1: the high watermark); the log's start afterwards (KIP-107).

        Durable when it returns. Whole segments leave the disk at once, what is left of the first one with it later.
        A start beyond `before` stands. Raises OffsetOutOfRange beyond the high watermark, and PolicyViolation where
        compaction alone decides what goes, as in Kafka. Raises TransactionPending where the table outlives its events,
        and some of these stand behind an open transaction.
        """
        await self.shortening.delete_records(before)
        return self.start_offset

    def check_deletable(self, before: int) -> None:
        """Raises what `delete_records` would, before anything is changed."""
        self.shortening.check_deletable(before)

    # --- its end

    async def close(self, error: KrappyError | None = None) -> None:
        """Ends it: what waits to be written is written, the view catches up, files are left clean.

        With an `error`, which everybody gets from now on, the files are left to `destroy`: a full disk, where nothing
        can be left clean, must not keep a topic from being deleted.
        """
        self.appender.close(error)
        if error is None:
            self.applier.close()
        else:
            self.applier.stop(error)
        await self.appender.idle()
        await self.applier.finish()
        if error is not None:
            self.gone = error
            self.moved.fire()
            return
        if self.config.view and self.applier.failed is None and not self.offline:
            self.applier.persist()
        await trio.to_thread.run_sync(self.log.close, limiter=self.disk_limiter)

    async def remove(self) -> None:
        """Deletes the files of what was closed with an error. Raises StorageError."""
        await trio.to_thread.run_sync(self.log.destroy, limiter=self.disk_limiter)
