"""One partition: its replica (replica.py) and view (viewed.py), publishing to it, and deletion from its start."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from krappy.broker.partition import raw_reads
from krappy.broker.partition.appender import Appender
from krappy.broker.partition.lent import Lent
from krappy.broker.partition.shortening import Shortening
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed
from krappy.core.stability import marker
from krappy.errors import KrappyError
from krappy.ports import Raw, StoredAt
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
        """Appends one RecordBatch v2. Raises at once what is wrong with the batch itself; other errors come through the
        Later.

        `expect`: conditions, each (index of a record, the offset that its key must stand at, or ABSENT). `by_header`:
        conditions are in the records' headers (core/conditions.py). `taken`: as for `publish_record`.
        """
        self._alive()
        if not taken:
            self._lent.check_room(len(data))
        return self.appender.publish(data, expect, by_header=by_header, taken=taken)

    def publish_record(self, record: Record, expect: int | None = None, *, taken: bool = False) -> Later[StoredAt]:
        """Appends one record. `taken`: it was accepted once before, so that neither its timestamp nor the room on the
        disk is checked."""
        self._alive()
        if not taken:
            self._lent.check_room(len(record.value or b""))
        return self.appender.publish_record(record, expect, taken=taken)

    def publish_own(self, header: BatchHeader, data: bytes) -> Later[StoredAt]:
        """Appends a batch of a transaction of the broker's own. Raises RecordTooLarge."""
        self._alive()
        return self.appender.publish_own(header, data)

    def end_transaction(self, producer_id: int, epoch: int, commit: bool) -> Later[StoredAt]:
        """Appends the marker that ends a producer's transaction in this partition, after all earlier publishes."""
        self._alive()
        return self.appender.publish_marker(marker(producer_id, epoch, commit, self.now_ms()))

    # --- what Kafka's consumers read

    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        """Batches as they stand in the log (`raw_reads.read_now`)."""
        return raw_reads.read_now(self, offset, max_bytes, limit, min_one=min_one)

    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        return await raw_reads.read(self, offset, max_bytes, limit, min_one=min_one)

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        """About how many bytes `fetch` would give."""
        return raw_reads.available(self, offset, max_bytes, limit)

    def told_earliest(self) -> int:
        """The log start, for a connection that asks for the earliest offset."""
        return self.start_offset

    def out_of_range(self) -> None:
        """Called when a connection is told that its offset is out of range. Does nothing here."""

    # --- retention

    async def delete_records(self, before: int) -> int:
        """Deletes the events before the offset `before` (-1: the high watermark). Gives the new log start (KIP-107).

        It is durable on return. Whole segments are removed from disk at once; the rest goes later, with its segment. A
        log start that is higher already stays. Raises OffsetOutOfRange beyond the high watermark, and, as Kafka does,
        PolicyViolation under cleanup.policy=compact alone. Raises TransactionPending where the table outlives its
        events and an open transaction began before `before`.
        """
        await self.shortening.delete_records(before)
        return self.start_offset

    def check_deletable(self, before: int) -> None:
        """Raises what `delete_records` would, before anything is changed."""
        self.shortening.check_deletable(before)

    # --- its end

    async def close(self, error: KrappyError | None = None) -> None:
        """Writes what waits to be written, lets the view catch up, and closes the files cleanly.

        With an `error`, all later calls raise it, and the files are left open until `remove`: so a topic can be deleted
        on a full disk, where they can't be closed cleanly.
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
        """Closes and deletes its files, after `close` with an error. Raises StorageError."""
        await trio.to_thread.run_sync(self.log.destroy, limiter=self.disk_limiter)
