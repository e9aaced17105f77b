"""What the tests of `TOPIC@latest` share: a consumer of it, and a broker to read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.latest.latest import LatestTables, Some
from krappy.broker.partition.partition import Partition
from krappy.core.latest import TableReading
from krappy.entries.entry import unpack_entry
from krappy.errors import OffsetOutOfRange
from krappy.records import batch
from krappy.types import FilePart
from tests.broker.engine import running

NEVER = 2**40  # ms
Row = tuple[int, bytes, bytes | None]  # offset, key, value


class Consumer:
    """An application that keeps a dict of what it has read, over connections that come and go."""

    def __init__(self, room: int = 1) -> None:
        self.position = 0
        self.began = 0  # before this offset it knows nothing
        self.held: dict[bytes, tuple[int, bytes]] = {}
        self.rows: list[Row] = []
        self.reading = TableReading()
        self.room = room

    def reconnect(self) -> None:
        self.reading = TableReading()

    async def fetch(self, tables: LatestTables, partition: Partition) -> bool:
        """Takes one answer; returns False at the end of the log."""
        end = partition.last_stable_offset
        if self.position < partition.start_offset:
            self.reading.lost()
            self.position = partition.start_offset
        if self.position >= end:
            return False
        reading, start = self.reading, partition.start_offset
        if not reading._begun and reading.blank is None and self.position == start in (0, reading._earliest):
            self.held.clear()  # as KAFKA.md asks of who begins at the log's start on a new connection
        if self.reading.at(self.position, partition.start_offset, end):
            try:
                some = await tables.read(partition, self.reading, self.position, self.room)
            except OffsetOutOfRange:
                return True
            data, following = content(some), some.following
        else:
            span = await partition.read(self.position, self.room)
            data, following = bytes(span.data), span.next_offset
        at = self.position
        for header, view in batch.split(data):
            assert header.base_offset >= at or at == self.position, "batches that overlap"
            at = header.next_offset
            columns = batch.decode(view)
            for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
                if offset >= self.position:
                    assert key is not None
                    self._take(offset, key, value)
        assert at == following > self.position, "a consumer goes on behind the last batch"
        self.position = following
        return True

    def _take(self, offset: int, key: bytes, value: bytes | None) -> None:
        self.rows.append((offset, key, value))
        if value is None:
            self.held.pop(key, None)
        else:
            self.held[key] = offset, value

    async def finish(self, tables: LatestTables, partition: Partition) -> None:
        while await self.fetch(tables, partition):
            pass


def content(some: Some) -> bytes:
    records = some.records
    return records.file.pread(records.size, records.position) if isinstance(records, FilePart) else records


async def write(partition: Partition, *pairs: tuple[str, str | None], codec: int = 0) -> int:
    keys = [key.encode() for key, _ in pairs]
    values = [None if value is None else value.encode() for _, value in pairs]
    later = partition.publish(batch.encode(keys, values, timestamps=1_000, codec=codec))
    return (await later.wait()).offset


async def table(broker: LocalBroker, partition: Partition) -> dict[bytes, tuple[int, bytes]]:
    await partition.view_wait(None, 30)
    entries, _ = broker.views.entries(partition.number, None, 100_000)
    scan = broker.scan([partition], None, None, None, tombstones=False)
    items = (await scan.page(100_000, 1 << 30)).items
    scan.close()
    found = {}
    for packed, entry in zip(items[::2], items[1::2], strict=True):
        offset, _, value, _ = unpack_entry(entry)
        assert value is not None
        assert entry in entries
        found[packed[2:]] = offset, value
    return found


async def topic(broker: LocalBroker, **config: Any) -> Partition:
    given = {name.replace("_", "."): str(value) for name, value in config.items()}
    return (await broker.create_topic("t", 1, given))[0].led(0)


def tables_of(broker: LocalBroker, room: int = 1 << 20, disk_room: int = 1 << 30) -> LatestTables:
    return LatestTables(broker, room, broker.config.data, disk_room)


def run(body: Any, folder: Path, **given: Any) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with running(folder, **given) as broker:
                await body(broker)

    trio.run(main)
