"""A topic as a table, by the async client."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import krappy
from krappy.clients.producing import Producing
from krappy.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    OffsetMismatch,
    RequestTimeout,
    UnknownPartition,
    UnknownTopic,
    ViewDisabled,
)
from krappy.types import Record
from tests.clients.helpers import fill
from tests.served import alone

pytestmark = pytest.mark.anyio


async def test_absent_deleted_and_a_value_are_three_answers(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions=3)
        table = client.table(topic)
        async with client.producer(topic) as producer:
            await producer.send(b"v", key=b"k", headers={"h": "1"}, timestamp=9)
            dead = await producer.send(None, key=b"dead")
        found = await table.get("k")
        assert found is not None
        assert (found.key, found.value, found.timestamp, found.headers) == (b"k", b"v", 9, (("h", b"1"),))
        gone = await table.get("dead")
        assert gone is not None
        assert (gone.deleted, gone.value, gone.offset) == (True, None, dead.offset)
        assert await table.get("nobody") is None
        assert await table.get_many(["nobody", b"k", "dead"]) == [None, found, gone]
        assert await table.get_many([]) == []
        for lookup in (table.get_many, table.get_columns):
            with pytest.raises(InvalidRequest, match="several keys"):
                await lookup("k")
        assert await table.get(b"k", partition=(found.partition + 1) % 3) is None
        with pytest.raises(UnknownTopic):
            await client.table(topic + "x").get(b"k")
        with pytest.raises(UnknownPartition):
            await table.get(b"k", partition=9)
        with pytest.raises(InvalidRecord):
            await table.get(None)  # type: ignore[arg-type]


async def test_a_topic_without_a_view_says_so(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, config={"view.enable": False})
        with pytest.raises(ViewDisabled):
            await client.table(topic).get(b"k")
        with pytest.raises(ViewDisabled):
            async for _ in client.table(topic).watch():
                pass


async def test_scans(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions=3)
        keys: list[Any] = [b"%s%04d" % (letter, number) for letter in (b"a", b"b") for number in range(1000)]
        async with client.producer(topic) as producer:
            await producer.send_columns(keys, keys)
            await producer.send(None, key=b"a0005")
        table = client.table(topic)
        alive = [key for key in keys if key != b"a0005"]

        async def scanned(**choice: Any) -> list[bytes]:
            return sorted([entry.key async for entry in table.scan(page_entries=77, **choice)])

        assert await scanned() == alive
        assert await scanned(prefix="a") == [key for key in alive if key < b"b"]
        assert await scanned(start=b"a0990", end=b"b0010") == [key for key in keys if b"a0990" <= key < b"b0010"]
        assert await scanned(prefix=b"a000", tombstones=True) == keys[:10]
        assert await scanned(prefix=b"c") == []
        scan = table.scan(page_entries=100)
        pages = [page async for page in scan.pages()]
        assert all(len({entry.partition for entry in page}) == 1 and len(page) <= 100 for page in pages)
        assert all(page == sorted(page) for page in pages)
        assert scan.offsets == await client.offsets(topic)
        entries = [entry for page in pages for entry in page]
        assert all(entry.value == entry.key for entry in entries)
        assert await table.get_many([entry.key for entry in entries]) == entries
        with pytest.raises(InvalidRequest):
            table.scan(prefix=b"a", start=b"b")
        async for _ in table.scan(page_entries=10):
            break  # the snapshot is given back


async def test_a_scan_sees_the_moment_it_began(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        keys: list[Any] = [b"%04d" % number for number in range(1000)]
        await producer.send_columns(keys, keys)
        found = {}
        async for page in client.table(topic).scan(page_entries=100).pages():
            found.update({entry.key: entry.value for entry in page})
            await producer.send_columns(keys, [b"changed"] * 1000)
        assert found == {key: key for key in keys}


async def test_the_history_of_a_key(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        for number in range(30):
            await producer.post(b"%d" % number, key=b"k%d" % (number % 3))
        await producer.send(None, key=b"k1")
        history = client.table(topic).history("k1")
        entries = [entry async for entry in history]
        assert [entry.value for entry in entries] == [*[b"%d" % number for number in range(1, 30, 3)], None]
        assert [entry.value async for entry in client.table(topic).history("k1", start=entries[8].offset)] == [
            entry.value for entry in entries[8:]
        ]
        assert [page async for page in client.table(topic).history("nobody").pages()] == []


async def test_a_watch_has_the_table_then_its_end_then_every_change(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        await producer.send_many([("a1", "1"), ("a2", "2"), ("b1", "x"), ("a1", "3")])
        async with client.table(topic).watch(prefix="a") as watch:
            snapshot = []
            async for item in watch:
                if isinstance(item, krappy.SnapshotEnd):
                    assert item.offsets == {0: 4}
                    break
                snapshot.append((item.key, item.value))
            assert sorted(snapshot) == [(b"a1", b"3"), (b"a2", b"2")]
            await producer.send_many([("a3", "new"), ("b2", "other"), Record(None, b"a1")])
            changes = [await anext(watch), await anext(watch)]
            assert [(each.key, each.value, each.offset) for each in changes if isinstance(each, krappy.Entry)] == [
                (b"a3", b"new", 4),
                (b"a1", None, 6),
            ]
            watch.close()
            with pytest.raises(krappy.ConnectionLost):
                await anext(watch)


async def test_a_watch_sees_partitions_that_are_added(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.table(topic).watch() as watch:
            assert isinstance(await anext(watch), krappy.SnapshotEnd)
            await client.alter_topic(topic, partitions=4)
            async with client.producer(topic) as producer:
                await producer.send_many([(f"key-{n}", str(n)) for n in range(100)])
            changes = [await anext(watch) for _ in range(100)]
            assert sorted(int(each.value or b"") for each in changes if isinstance(each, krappy.Entry)) == [*range(100)]
            assert {each.partition for each in changes if isinstance(each, krappy.Entry)} == {0, 1, 2, 3}


async def test_a_watcher_that_does_not_read_holds_up_nobody(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        table = client.table(topic)
        async with table.watch() as watch:
            assert isinstance(await anext(watch), krappy.SnapshotEnd)
            for _ in range(40):
                await producer.send_columns([b"k"] * 50, [b"x" * 10_000] * 50)
            assert await table.get(b"k") is not None
            offsets = [(await anext(watch)).offset for _ in range(2000)]  # type: ignore[union-attr]
            assert offsets == list(range(2000))


async def test_waiting_for_the_table(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 3000, partitions=2)
        table, told = client.table(topic), []
        await table.catch_up(progress=lambda done, total: told.append((done, total)))
        assert told[-1][0] == told[-1][1] <= 6000
        assert [each.applied for each in (await client.describe(topic)).partitions] == [3000, 3000]
        await table.catch_up({1: 3000}, timeout=0)
        with pytest.raises(RequestTimeout, match="has yet to take in 5 events; the broker goes on"):
            await table.catch_up({1: 3005, 0: 7}, timeout=0)
        with pytest.raises(UnknownPartition):
            await table.catch_up({2: 1})
        await client.create_topic(f"{topic}-off", config={"view.enable": False})
        async with client.producer(f"{topic}-off") as producer:
            await producer.send(b"v", key=b"k")
        with pytest.raises(ViewDisabled):
            await client.table(f"{topic}-off").catch_up()


@alone
async def test_a_lookup_that_gives_up_says_what_it_waited_for(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers before the client's time is over, and the client asks again until its time is over."""
    monkeypatch.setattr("krappy.broker.tables.table.VIEW_PATIENCE", 0.01)
    async with krappy.connect(address) as client:
        await fill(client, topic, 3)
    for timeout in (0.3, 3.0, 30.0):  # a busy machine may need longer to give one answer
        async with krappy.connect(address, timeout=timeout) as client:
            with pytest.raises(RequestTimeout) as found:
                await client.table(topic).get("k", min_offset=8)
        if "no answer" not in str(found.value):
            break
    assert "has no event with offset 8 yet: after 0.01 s of waiting the next one is 3" in str(found.value)


async def test_a_key_is_put_changed_and_deleted(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        table = client.table(topic)
        first = await table.put("k", "1", expect="absent", headers={"h": "x"})
        found = await table.get("k")
        assert found is not None
        assert (found.value, found.offset, found.headers) == (b"1", first.offset, (("h", b"x"),))
        with pytest.raises(OffsetMismatch) as caught:
            await table.put("k", "2", expect="absent")
        assert caught.value.current == first.offset
        second = await table.put("k", "2", expect=first.offset)
        with pytest.raises(OffsetMismatch):
            await table.delete("k", expect=first.offset)
        gone = await table.delete("k", expect=second.offset)
        found = await table.get("k")
        assert found is not None
        assert (found.deleted, found.offset) == (True, gone.offset)
        with pytest.raises(InvalidRecord, match="needs a key"):
            await table.put(None, "2")  # type: ignore[arg-type]


async def test_an_update_is_of_the_latest_value_however_many_change_it(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, krappy.connect(address) as other, anyio.create_task_group() as tasks:
        await client.create_topic(topic, partitions=3)

        async def count(table: Any) -> None:
            for _ in range(10):
                await table.update("n", lambda value: str(int(value or 0) + 1))

        for _ in range(5):
            tasks.start_soon(count, client.table(topic))
            tasks.start_soon(count, other.table(topic))
    async with krappy.connect(address) as client:
        table = client.table(topic)
        found = await table.get("n")
        assert found is not None
        assert found.value == b"100"
        await table.update("n", lambda value: None)
        found = await table.get("n")
        assert found is not None
        assert found.deleted
        await table.update("n", lambda value: b"anew" if value is None else None)
        with pytest.raises(ZeroDivisionError):
            await table.update("n", lambda value: str(1 // 0))
        found = await table.get("n")
        assert found is not None
        assert found.value == b"anew"


@alone  # of several brokers none can decide a condition then
async def test_an_update_writes_where_the_key_stands(address: str, topic: str) -> None:
    """Keys that were written before partitions were added stand in other partitions than their own."""
    keys = [b"%d" % number for number in range(8)]
    async with krappy.connect(address) as client:
        table = client.table(topic)
        for key in keys:
            await table.put(key, "1")
        await client.alter_topic(topic, partitions=4)
        for key in keys:
            await table.update(key, lambda value: (value or b"") + b"2")
        found = await table.get_many(keys)
        assert [entry.value if entry else None for entry in found] == [b"12"] * 8


@alone
async def test_an_update_follows_a_key_into_a_partition_that_another_client_added(address: str, topic: str) -> None:
    keys = [b"%d" % number for number in range(8)]
    async with krappy.connect(address) as client, krappy.connect(address) as other:
        table = client.table(topic)
        await table.put("first", "1")
        await other.alter_topic(topic, partitions=4)
        for key in keys:
            await other.table(topic).put(key, "1")
            await table.update(key, lambda value: (value or b"") + b"2")
        found = await table.get_many(keys)
        assert [entry.value if entry else None for entry in found] == [b"12"] * 8
        assert {entry.partition for entry in found if entry} == {0, 1, 2, 3}


async def test_an_update_gives_up_after_the_timeout(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, krappy.connect(address, timeout=2) as hasty:
        table = client.table(topic)
        await table.put("k", "0")
        tried: list[int] = []

        async def other() -> None:
            await table.put("k", str(len(tried)))

        class Overtaken(type(hasty.table(topic))):  # type: ignore[misc]
            async def put(self, *arguments: Any, **more: Any) -> Any:
                tried.append(1)
                await other()
                return await super().put(*arguments, **more)

        overtaken = Overtaken(hasty._connection, topic)
        with pytest.raises(OffsetMismatch):
            await overtaken.update("k", lambda value: b"mine")
        assert len(tried) > 1


async def test_many_first_puts_share_one_registration(address: str, topic: str, monkeypatch: Any) -> None:
    opened = []
    real = Producing.open

    async def counted(self: Producing) -> None:
        opened.append(self.topic)
        await real(self)

    monkeypatch.setattr(Producing, "open", counted)
    async with krappy.connect(address) as client, anyio.create_task_group() as tasks:
        table = client.table(topic)
        for number in range(50):
            tasks.start_soon(table.put, str(number), "v")
    assert opened == [topic]


async def test_a_put_that_could_not_be_begun_leaves_the_next_its_chance(address: str) -> None:
    async with krappy.connect(address) as client:
        table = client.table("no such/name")
        for _ in range(2):
            with pytest.raises(InvalidTopic):
                await table.put("k", "v")
