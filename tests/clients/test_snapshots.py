"""Snapshots that many connections read, and tables and logs by blocks of columns, by both clients."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import krappy
from krappy import blocking
from krappy.clients.blocks import ColumnBlock
from krappy.errors import InvalidRequest, OffsetOutOfRange, SnapshotGone, UnknownPartition, ViewDisabled
from tests.clients.helpers import fill
from tests.clients.proxy import Proxy

Row = dict[str, Any]


def rows(blocks: list[ColumnBlock]) -> list[Row]:
    """What blocks hold, a dict for each row."""
    found: list[Row] = []
    for block in blocks:
        columns = block.lists()
        assert {len(column) for column in columns.values()} == {block.rows}
        found += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found


@pytest.mark.anyio
async def test_a_snapshot_is_the_table_at_its_offsets_on_any_connection(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, krappy.connect(address) as other:
        await client.create_topic(topic, partitions=3)
        keys: list[Any] = [b"%05d" % number for number in range(5000)]
        async with client.producer(topic) as producer:
            await producer.send_columns(keys, keys)
            await producer.send(None, key=b"00001")
            await producer.send("v", key="h", headers={"a": "1", "b": None}, timestamp=7)
            snapshot = await client.snapshot(topic, splits=6)
            await producer.send_columns(keys, [b"changed"] * len(keys))
            await producer.send("v", key="new")
        snapshot = pickle.loads(pickle.dumps(snapshot))
        assert snapshot.topic == topic
        assert snapshot.offsets.keys() == {0, 1, 2}
        assert sum(snapshot.offsets.values()) == 5002
        found = [
            row
            for key_range in snapshot.ranges
            for row in rows([block async for block in other.read_snapshot(snapshot.id, key_range, block_bytes=9000)])
        ]
        assert sorted((row["key"], row["value"]) for row in found) == sorted(
            [*((key, key) for key in keys if key != b"00001"), (b"h", b"v")]
        )
        [told] = [row for row in found if row["key"] == b"h"]
        assert (told["headers"], told["timestamp"]) == ((("a", b"1"), ("b", None)), 7)
        await client.close_snapshot(snapshot.id)
        await client.close_snapshot(snapshot.id)
        with pytest.raises(SnapshotGone):
            [block async for block in other.read_snapshot(snapshot.id, snapshot.ranges[0])]
        with pytest.raises(SnapshotGone):
            await other.keep_snapshot(snapshot.id)


def test_columns_and_tombstones_are_chosen(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_columns([b"a1", b"a2", b"b1"], [b"x", b"", None])
        snapshot = client.snapshot(topic, prefix="a")
        [block] = client.read_snapshot(snapshot.id, snapshot.ranges[0], columns=("offset", "key"))
        assert block.lists() == {"key": [b"a1", b"a2"], "offset": [0, 1]}
        assert (block.values, block.timestamps, block.headers) == (None, None, None)
        # A wider range than the snapshot is cut to it.
        wide = krappy.KeyRange(0)
        [block] = client.read_snapshot(snapshot.id, wide, tombstones=True, columns=("value",))
        assert block.lists() == {"value": [b"x", b""]}
        every = client.snapshot(topic, tombstones=True, start="a2", end="c")
        [block] = client.read_snapshot(every.id, wide, columns=("key", "value"))
        assert block.lists() == {"key": [b"a2", b"b1"], "value": [b"", None]}
        [block] = client.read_snapshot(every.id, wide, columns=("key", "value"), tombstones=False)
        assert block.lists() == {"key": [b"a2"], "value": [b""]}
        client.keep_snapshot(every.id, 5)
        with pytest.raises(UnknownPartition):
            list(client.read_snapshot(every.id, krappy.KeyRange(1)))
        with pytest.raises(InvalidRequest):
            client.read_snapshot(every.id, wide, columns=("key", "offsets"))
        for id in (snapshot.id, every.id):
            client.close_snapshot(id)
        client.create_topic(topic + "2", config={"view.enable": False})
        with pytest.raises(ViewDisabled):
            client.snapshot(topic + "2")


@pytest.mark.anyio
async def test_a_log_is_read_between_offsets(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 3000, partitions=2)
        async with client.producer(topic) as producer:
            last = await producer.send("v", key="k", headers={"h": "x"}, timestamp=5, partition=1)

        async def read(*between: int, **how: Any) -> list[Row]:
            return rows([block async for block in client.read_log(topic, 1, *between, **how)])

        found = await read(0, last.offset + 1, block_bytes=5000)
        assert [row["offset"] for row in found] == list(range(3001))
        assert [row["value"] for row in found] == [*(b"1:%d" % number for number in range(3000)), b"v"]
        assert [row["timestamp"] for row in found] == [*range(1000, 4000), 5]
        assert found[-1]["headers"] == (("h", b"x"),)
        assert {row["key"] for row in found} == {None, b"k"}
        some = await read(17, 1234, columns=("offset", "value"))
        assert some == [{"offset": offset, "value": b"1:%d" % offset} for offset in range(17, 1234)]
        assert await read(5, 5) == []
        with pytest.raises(OffsetOutOfRange) as caught:
            await read(0, 3002)
        assert (caught.value.start, caught.value.end) == (0, 3001)
        with pytest.raises(InvalidRequest):
            await read(5, 4)


def test_reading_goes_on_after_lost_connections(lossy: Proxy, topic: str) -> None:
    with blocking.connect(lossy.address) as client:
        client.create_topic(topic)
        keys: list[Any] = [b"%05d" % number for number in range(5000)]
        with client.producer(topic) as producer:
            producer.send_columns(keys, keys)
        snapshot = client.snapshot(topic)
        found: list[Row] = []
        for key_range in snapshot.ranges:
            for number, block in enumerate(client.read_snapshot(snapshot.id, key_range, block_bytes=20_000)):
                found += rows([block])
                if number % 2:
                    lossy.cut()
        assert [row["key"] for row in found] == keys
        found = []
        for block in client.read_log(topic, 0, 0, 5000, block_bytes=20_000):
            found += rows([block])
            lossy.cut()
        assert [row["key"] for row in found] == keys
        client.close_snapshot(snapshot.id)
