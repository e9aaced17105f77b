"""Snapshots that many connections read, and tables and logs by blocks of columns, by both clients."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import krappy
from krappy import arrow_layout, blocking
from krappy.clients.blocks import ColumnBlock
from krappy.errors import InvalidRequest, OffsetOutOfRange, RecordTooLarge, SnapshotGone, UnknownPartition, ViewDisabled
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


@pytest.mark.anyio
@pytest.mark.parametrize("partitions", [1, 3])
async def test_many_keys_are_looked_up_as_columns(address: str, topic: str, partitions: int) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions)
        keys: list[Any] = [b"%0120d" % number for number in range(12_000)]
        async with client.producer(topic) as producer:
            await producer.send_columns(keys[:10_000], [b"v" * (number % 50) for number in range(10_000)])
            await producer.send(None, key=keys[7])
            await producer.send("told", key=keys[8], headers={"h": "x"}, timestamp=5)
            await producer.send("y" * 3000, key=keys[9])
        table = client.table(topic)
        entries = await table.get_many(keys)  # more than a MiB of keys
        assert [entry is not None for entry in entries] == [number < 10_000 for number in range(12_000)]
        for asked in (keys, arrow_layout.binary(keys)):
            block = await table.get_columns(asked)
            assert block.rows == 12_000
            assert block.there() == [entry is not None for entry in entries]
            found = block.lists()
            for name in ("value", "offset", "timestamp", "headers"):
                wanted = [getattr(entry, name) for entry in entries[:10_000] if entry]
                assert found[name][:10_000] == wanted, name
            assert found["value"][10_000:] == [None] * 2000
            assert (block.partitions is None) == (partitions == 1)
            if block.partitions is not None:
                where = memoryview(block.partitions).cast("i").tolist()
                assert where[:10_000] == [entry.partition for entry in entries[:10_000] if entry]
        some = await table.get_columns(keys[:100], columns=("offset",))
        assert (some.values, some.timestamps, some.headers, some.found) == (None, None, None, None)
        assert some.lists() == {"offset": [entry.offset for entry in entries[:100] if entry]}
        assert (await table.get_columns([])).rows == 0
        elsewhere = await table.get_columns(["nobody"], partition=partitions - 1)
        assert (elsewhere.there(), elsewhere.partition) == ([False], partitions - 1)
        with pytest.raises(InvalidRequest):
            await table.get_columns(arrow_layout.binary([b"a", None]))
        with pytest.raises(InvalidRequest):
            await table.get_columns(["a"] * 100_001)


def test_the_blocking_client_looks_up_columns_and_says_when_they_are_too_many(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        producer.send("x" * 900_000, key="big").result()
        table = client.table(topic)
        assert table.get_columns(["big", "none"], columns=("value",)).lists() == {"value": [b"x" * 900_000, None]}
        with pytest.raises(RecordTooLarge):
            table.get_columns(["big"] * 20)
        assert table.get_columns(["big"] * 20, columns=("offset",)).lists() == {"offset": [0] * 20}


def test_its_size_is_exact_up_to_what_is_asked_and_no_less_beyond(address: str, topic: str) -> None:
    """The size is that of the snapshot: of the latest entry of each key, in the partitions and keys that
    were chosen."""
    with blocking.connect(address) as client:
        client.create_topic(topic, partitions=2)
        assert client.snapshot(topic).size is None
        assert client.snapshot(topic, measure=0).size == 0
        with client.producer(topic, compression="zstd") as producer:
            for value in (b"old" * 1000, b"v" * 990):
                for number in range(3_000):
                    producer.send(value, key=f"{number:010}")
            for number in range(1_000):
                producer.send(None, key=f"{number:010}")
        alive = client.snapshot(topic, measure=64 << 20)
        assert alive.size is not None
        assert 2_000 * 1_000 < alive.size < 2_000 * 1_040
        parts = [client.snapshot(topic, partitions=[each], measure=64 << 20).size or 0 for each in (0, 1)]
        assert sum(parts) == alive.size
        assert client.snapshot(topic, measure=alive.size).size == alive.size
        with_dead = client.snapshot(topic, measure=64 << 20, tombstones=True).size
        assert with_dead is not None
        assert 10_000 < with_dead - alive.size < 50_000
        some = client.snapshot(topic, prefix="00000029", measure=64 << 20).size
        assert some is not None
        assert 100 * 1_000 < some < 100 * 1_040
        for measure in (0, 1000, alive.size - 1):
            size = client.snapshot(topic, measure=measure).size
            assert size is not None
            assert size > measure
        for wrong in (-1, (64 << 20) + 1):
            with pytest.raises(InvalidRequest, match="measure"):
                client.snapshot(topic, measure=wrong)
