"""What lost connections do to a client, and what they must not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import krappy
from krappy.broker.tables.table import TableScan, TableWatch
from krappy.errors import (
    ConnectionLost,
    FrameTooLarge,
    LeaseLost,
    RecordTooLarge,
    RequestTimeout,
    ShuttingDown,
    UnknownTopic,
)
from krappy.partitioner import partition_for
from krappy.ports import ScanPage
from krappy.testing.running import run_broker
from krappy.types import Record
from krappy.wire import messages
from tests.clients.helpers import fill, truth
from tests.clients.proxy import Proxy, proxy

pytestmark = pytest.mark.anyio


async def test_a_timeout_bounds_an_operation(lossy: Proxy, topic: str) -> None:
    async with krappy.connect(lossy.address, timeout=2.5) as client:
        await client.ping()
        lossy.deafen()
        with pytest.raises(RequestTimeout, match=r"no answer to Ping in 2\.5 s"):
            await client.ping()
        with pytest.raises(RequestTimeout, match=r"no answer to Ping in time$"):  # the rest was spent elsewhere
            await client._connection.link.ask(messages.Ping(), messages.Pong, timeout=0.01)
        lossy.refuse()
        with pytest.raises(ConnectionLost):
            await client.ping()


async def test_reads_outlive_lost_connections(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, other.producer(topic) as producer:
        await producer.send(b"v", key=b"k")
    async with krappy.connect(lossy.address) as client:
        table = client.table(topic)
        for number in range(12):
            if number % 3 == 1:
                lossy.deafen()

            async def cut_soon() -> None:
                await anyio.sleep(0.02)
                lossy.cut()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cut_soon)
                entry = await table.get(b"k")
                assert entry is not None
        assert lossy.accepted > 2


async def test_what_may_have_been_done_is_not_done_again(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(lossy.address) as client, krappy.connect(address) as other:
        await client.ping()
        lossy.deafen()
        async with anyio.create_task_group() as tasks:

            async def cut() -> None:
                while topic not in [each.name for each in await other.topics()]:
                    await anyio.sleep(0.01)
                lossy.cut()

            tasks.start_soon(cut)
            with pytest.raises(ConnectionLost):
                await client.create_topic(topic)
        lossy.deafen()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut)
            assert not await client.create_topic(topic, if_absent=True)  # harmless twice: asked again


async def test_nothing_is_stored_twice_or_lost_when_connections_are_lost(
    lossy: Proxy, address: str, topic: str
) -> None:
    """Acknowledgements are lost, connections are reset in the middle of batches: every event is there once,
    in order."""
    count = 3000
    async with krappy.connect(address) as other:
        await other.create_topic(topic, partitions=2)
    producing: dict[str, Any] = {"batch_bytes": 1500, "linger_ms": 1}
    async with krappy.connect(lossy.address) as client, client.producer(topic, **producing) as producer:
        deliveries = []
        for number in range(count):
            deliveries.append(await producer.post(b"%d" % number, partition=number % 2))
            if number % 100 == 50:
                lossy.deafen()
            if number % 100 == 99:
                await anyio.sleep(0.01)
                lossy.cut()
            if number % 7 == 0:
                await anyio.sleep(0)
        await producer.flush()
        receipts = [await delivery for delivery in deliveries]
    assert lossy.accepted > 2
    assert lossy.dropped
    async with krappy.connect(address) as other, other.consumer(topic, end="now") as consumer:
        found = {(event.partition, event.offset): event.value async for event in consumer}
    assert len(found) == count
    for partition in range(2):
        mine = [found[partition, offset] for offset in range(count // 2)]
        assert mine == [b"%d" % number for number in range(partition, count, 2)]
    assert [found[receipt.partition, receipt.offset] for receipt in receipts] == [b"%d" % n for n in range(count)]


async def test_a_reader_goes_on_exactly_where_it_was(lossy: Proxy, address: str, topic: str) -> None:
    count = 3000
    async with krappy.connect(address) as other:
        await fill(other, topic, count, partitions=2)
        async with krappy.connect(lossy.address) as client:
            seen: dict[int, list[int]] = {0: [], 1: []}
            async with client.consumer(topic, max_records=100, max_bytes=3000, end="now") as consumer:
                async for event in consumer:
                    seen[event.partition].append(event.offset)
                    if event.offset % 500 == 250:
                        lossy.cut()
            assert seen == {0: list(range(count)), 1: list(range(count))}
    assert lossy.accepted > 2


async def test_a_member_goes_on_under_another_name_and_misses_nothing(lossy: Proxy, address: str, topic: str) -> None:
    count = 300
    async with krappy.connect(address) as other:
        await fill(other, topic, count)
        names = set()
        async with krappy.connect(lossy.address) as client:
            seen = []
            async with client.consumer(topic, group=topic, max_records=40, max_deliveries=100) as consumer:
                async for event in consumer:
                    names.add(consumer.member)
                    seen.append(event.offset)
                    if len(seen) % 50 == 25:
                        lossy.cut()
                    await consumer.ack(event, wait=True)
                    if set(seen) == set(range(count)) and (await other.group(topic)).lag == 0:
                        break
        assert set(seen) == set(range(count))
        assert len(seen) < 2 * count


async def test_an_ack_of_what_another_has_by_now_is_lost_to_its_caller_alone(
    lossy: Proxy, address: str, topic: str
) -> None:
    async with krappy.connect(address) as other:
        await fill(other, topic, 1)
        async with krappy.connect(lossy.address) as client, client.consumer(topic, group=topic) as mine:
            event = await anext(mine)
            lossy.refuse()
            async with other.consumer(topic, group=topic) as theirs:
                again = await anext(theirs)
                assert (again.offset, again.deliveries) == (0, 2)
                lossy.refuse(False)
                with pytest.raises(LeaseLost):
                    await mine.ack(event, wait=True)
                await theirs.ack(again)
            async with other.producer(topic) as producer:
                await producer.send(b"next")
            event = await anext(mine)
            assert event.value == b"next"
            await mine.ack(event)


async def test_a_watch_goes_on_without_gap_or_duplicate(lossy: Proxy, address: str, topic: str) -> None:
    """Connections are lost in the middle of the snapshot, more than once, and between the changes. All the while the
    table changes: keys that were told already and keys that were not, values and deletions."""
    keys: list[Any] = [b"%03d" % number for number in range(300)]
    table: dict[bytes, bytes | None] = {}
    last = {next(key for key in (b"end %d" % n for n in range(50)) if partition_for(key, 2) == at) for at in (0, 1)}
    seen = set()
    ends = set()
    live = False
    async with krappy.connect(address) as other:
        await other.create_topic(topic, partitions=2)
        async with other.producer(topic) as producer, krappy.connect(lossy.address) as client:
            await producer.send_columns(keys, [b"x" * 60_000] * 300)
            async with client.table(topic).watch() as watch:
                async for item in watch:
                    if isinstance(item, krappy.SnapshotEnd):
                        live = True
                        await producer.send_columns(keys[:250], [b"y" * 20_000] * 250)
                        for key in last:
                            await producer.send(b"", key=key)
                        continue
                    assert (item.partition, item.offset) not in seen, "a duplicate"
                    seen.add((item.partition, item.offset))
                    table[item.key] = item.value
                    if item.key in last:
                        ends.add(item.key)
                        if ends == last:
                            break
                    if len(seen) % 70 == 35:
                        lossy.cut()
                        if not live:
                            await producer.send_many([(key, b"%d" % len(seen)) for key in keys[len(seen) % 7 :: 23]])
                            await producer.send_many([Record(None, key) for key in keys[len(seen) % 11 :: 50]])
        expected = await truth(other, topic, keys)
    assert {key: table.get(key) for key in keys} == expected
    assert lossy.accepted > 2


async def test_a_watch_keeps_added_partitions_over_losses(lossy: Proxy, address: str, topic: str) -> None:
    """Connections are lost before the events of the new partitions come, and while they come."""
    seen: list[tuple[int, int]] = []
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await other.create_topic(topic)
        async with client.table(topic).watch() as watch:
            assert isinstance(await anext(watch), krappy.SnapshotEnd)
            await other.alter_topic(topic, partitions=3)
            lossy.cut()
            async with other.producer(topic) as producer:
                for number in range(60):
                    await producer.send(b"x" * 20_000, key=b"%d" % number, partition=number % 3)
            while len(seen) < 60:
                item = await anext(watch)
                assert isinstance(item, krappy.Entry)
                seen.append((item.partition, item.offset))
                if len(seen) % 20 == 10:
                    lossy.cut()
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(20)]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_broker_that_stops_ends_a_scan_as_a_lost_connection_does(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    pages: list[ScanPage] = []

    async def page(self: TableScan, max_entries: int, max_bytes: int) -> ScanPage:
        if pages:
            raise ShuttingDown("the broker stops")
        pages.append(await whole(self, max_entries, max_bytes))
        return pages[-1]

    async with krappy.connect(address) as client:
        async with client.producer(topic) as producer:
            await producer.send_many([(b"%d" % number, b"x") for number in range(300)])
        whole = TableScan.page
        monkeypatch.setattr(TableScan, "page", page)
        with pytest.raises(ConnectionLost, match="scan again"):
            async for _ in client.table(topic).scan(page_entries=100, ordered=ordered):
                pass
    assert len(pages) == 1


async def test_a_watch_that_a_stopping_broker_ends_goes_on(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop closes what is registered; if nothing else tells of it before, the watch gets its last answer."""
    ended: list[int] = []

    async def run(self: TableWatch, *arguments: Any) -> None:
        if len(ended) < 2:
            ended.append(1)
        else:
            await whole(self, *arguments)

    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        whole = TableWatch.run
        monkeypatch.setattr(TableWatch, "run", run)
        async with client.table(topic).watch() as watch:
            with anyio.fail_after(60):
                assert isinstance(await anext(watch), krappy.SnapshotEnd)
    assert len(ended) == 2


async def test_what_begins_while_no_broker_answers_waits_for_it(lossy: Proxy, topic: str) -> None:
    """Each of these has a connection of its own, or one that was lost."""
    async with krappy.connect(lossy.address) as client:
        await client.create_topic(topic)
        table = client.table(topic)
        await table.put("k", "1")

        async def watch() -> None:
            async with table.watch() as watch:
                entry = await anext(watch)
                assert isinstance(entry, krappy.Entry)
                assert entry.value == b"1"

        async def consume() -> None:
            async with client.consumer(topic) as consumer:
                assert (await anext(consumer)).value == b"1"

        async def look_up() -> None:
            entry = await table.get("k")
            assert entry is not None

        for begun in (watch, consume, look_up):
            lossy.refuse()
            refused = lossy.refused
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(begun)
                with anyio.fail_after(60):
                    while lossy.refused < refused + 5:
                        await anyio.sleep(0.005)
                lossy.refuse(False)


async def test_a_scan_does_not_mix_two_snapshots(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, other.producer(topic) as producer:
        keys: list[Any] = [b"%04d" % number for number in range(1000)]
        await producer.send_columns(keys, keys)
    async with krappy.connect(lossy.address) as client:

        async def scan() -> None:
            async for page in client.table(topic).scan(page_entries=100).pages():
                assert page
                lossy.cut()
                await anyio.sleep(0.02)

        with pytest.raises(ConnectionLost, match="snapshot"):
            await scan()


async def test_the_broker_may_be_restarted_under_a_client(tmp_path: Path) -> None:
    """Everything goes on: the broker still knows the producer's batches, and the reader is where it was."""

    def started() -> Any:
        running = run_broker(tmp_path / "data", durability="os")
        return running, running.__enter__()

    running, broker = await anyio.to_thread.run_sync(started)
    deliveries: list[Any] = []
    seen: list[Any] = []
    with proxy(broker.address) as relay:
        async with (
            krappy.connect(relay.address) as client,
            client.producer("t", linger_ms=1) as producer,
            client.consumer("t") as consumer,
        ):
            for number in range(400):
                deliveries.append(await producer.post(b"%d" % number))
                if number % 20 == 0:
                    seen += [event.value for event in await consumer.poll(0.01)]
                if number in (100, 300):
                    relay.deafen()
                if number in (120, 320):
                    await anyio.sleep(0.05)
                    relay.refuse()
                    await anyio.to_thread.run_sync(running.__exit__, None, None, None)
                    running, broker = await anyio.to_thread.run_sync(started)
                    relay.to = broker.address
                    relay.refuse(False)
            assert [(await delivery).offset for delivery in deliveries] == list(range(400))
            while len(seen) < 400:
                seen += [event.value for event in await consumer.poll(10)]
            assert seen == [b"%d" % number for number in range(400)]
    await anyio.to_thread.run_sync(running.__exit__, None, None, None)


async def test_a_peer_that_falls_silent_is_left(lossy: Proxy, topic: str) -> None:
    """There is no reset and no end: only silence, for longer than the keepalive."""
    async with (
        krappy.connect(lossy.address, keepalive=0.1) as client,
        client.producer(topic) as producer,
        client.consumer(topic) as consumer,
    ):
        await producer.send(b"1")
        assert (await anext(consumer)).value == b"1"
        lossy.freeze()
        await producer.send(b"2")
        assert (await anext(consumer)).value == b"2"
    assert lossy.accepted == 2


async def test_a_topic_deleted_under_its_users(address: str, topic: str) -> None:
    """A producer makes the topic anew, a reader reports it."""
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        await producer.send(b"old")
        async with client.consumer(topic) as consumer:
            await anext(consumer)
            await client.delete_topic(topic)
            with pytest.raises(UnknownTopic):
                await anext(consumer)
        with pytest.raises(UnknownTopic):
            await producer.send(b"lost")
        assert (await producer.send(b"new")).offset == 0


async def test_leases_that_ran_out_in_the_buffer_are_not_handed_out(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 20)
        async with client.consumer(topic, group=topic, lease_ms=1500, max_deliveries=100) as consumer:
            seen: list[int] = []
            while len(seen) < 20:
                event = await anext(consumer)
                if len(seen) == 3:
                    await anyio.sleep(1.7)  # the others' leases are gone by now, and so is this one's
                    with anyio.move_on_after(5):
                        await consumer.ack(event)  # late, but nobody else has it
                    seen.append(event.offset)
                    continue
                await consumer.ack(event)
                seen.append(event.offset)
        assert sorted(seen) == list(range(20))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look for added partitions all the time."""
    monkeypatch.setattr("krappy.clients.sending.REFRESH", 0.0)
    monkeypatch.setattr("krappy.clients.reading.REFRESH", 0.0)
    monkeypatch.setattr("krappy.clients.reading.MAX_WAIT", 50)


async def test_a_partition_that_was_added_may_be_named_at_once(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with (
            client.producer(topic) as sender,
            client.producer(topic) as columns,
            client.stage(topic, job=topic, task=0, attempt=0) as stage,
        ):
            await client.alter_topic(topic, partitions=3)
            assert (await sender.send("x", partition=1)).partition == 1
            assert [each.partition for each in await columns.send_columns(None, ["x"], partition=2)] == [2]
            await stage.send("x", partition=1)
            await client.commit_staged(topic, [await stage.seal()])
            async with client.consumer(topic, end="now") as consumer:
                assert sorted([event.partition async for event in consumer]) == [1, 1, 2]
            for wrong in (-1, 3):
                with pytest.raises(krappy.UnknownPartition):
                    await sender.send("x", partition=wrong)


async def test_partitions_that_are_added_are_found(address: str, topic: str, eager: None) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.producer(topic) as producer, client.consumer(topic, start="latest") as consumer:
            keys = [b"%d" % number for number in range(50)]
            await producer.send_many([(key, b"1") for key in keys])
            assert {(await anext(consumer)).partition for _ in keys} == {0}
            await client.alter_topic(topic, partitions=4)
            await producer.send(b"x", key=b"x")
            receipts = await producer.send_many([(key, b"2") for key in keys])
            assert [receipt.partition for receipt in receipts] == [partition_for(key, 4) for key in keys]
            seen = [await anext(consumer) for _ in range(51)]
            assert sorted(event.key or b"" for event in seen) == sorted([*keys, b"x"])


async def test_what_no_broker_takes_is_refused_here(address: str, topic: str) -> None:
    """A frame over the broker's limit would cost the connection, again and again."""
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        with pytest.raises(RecordTooLarge, match="the broker takes 67108864"):
            await producer.send(bytes(65 << 20))
        assert (await producer.send(b"fine")).offset == 0
        with pytest.raises(FrameTooLarge):
            await client.table(topic).get(bytes(65 << 20))


async def test_an_event_fails_in_time_where_the_broker_takes_nothing(lossy: Proxy, topic: str) -> None:
    """The producer itself waits for the connection then, and nobody knows yet that the connection is lost."""
    async with krappy.connect(lossy.address) as client:
        await client.create_topic(topic, partitions=16)
        async with client.producer(topic, timeout=1) as producer:
            await producer.send(b"first")
            lossy.stall()
            sent = [await producer.post(b"x" * 300_000, partition=number % 16) for number in range(100)]
            with anyio.fail_after(20):
                for each in sent:
                    with pytest.raises(RequestTimeout):
                        await each
            lossy.cut()
            receipt = await producer.send(b"last")
            assert receipt.offset >= 0
