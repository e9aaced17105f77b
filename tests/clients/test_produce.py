"""Publishing by the async client, against a real broker."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import krappy
import krappy.blocking
from krappy.clients.aio.io import AnyioSignal
from krappy.clients.lane import LaneBatch
from krappy.clients.producing import Producing
from krappy.clients.routes import Route
from krappy.errors import (
    ConfigError,
    InvalidRecord,
    InvalidRequest,
    KrappyError,
    OffsetMismatch,
    RecordTooLarge,
    StorageError,
    UnknownPartition,
)
from krappy.partitioner import partition_for
from krappy.store.synced import ACCEPT
from krappy.testing.running import run_broker
from krappy.types import Record
from tests.served import alone

pytestmark = pytest.mark.anyio


async def test_the_lines_that_users_read_first(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions=3, config={"cleanup.policy": "compact"})
        async with client.producer(topic) as producer:
            receipt = await producer.send(b"Ada", key=b"u1")
            assert (receipt.partition, receipt.offset) == (partition_for(b"u1", 3), 0)
            assert abs(receipt.timestamp - datetime.now(UTC).timestamp() * 1000) < 60_000
        entry = await client.table(topic).get(b"u1")
        assert entry is not None
        assert (entry.value, entry.offset, entry.partition) == (b"Ada", 0, receipt.partition)
        async with client.consumer(topic, group=f"mail-{topic}") as consumer:
            async for event in consumer:
                assert event.value == b"Ada"
                await consumer.ack(event)
                break
        assert (await client.group(f"mail-{topic}")).lag == 0


async def test_the_short_form_makes_the_topic(address: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRAPPY_ADDRESS", address)
    async with krappy.Producer() as producer:
        receipt = await producer.send(topic, "Hello World")
    assert receipt.topic == topic
    async with krappy.Consumer(topic, group=topic) as consumer:
        async for event in consumer:
            assert event.value == b"Hello World"
            await consumer.ack(event)
            break
    async with krappy.Consumer(topic, to=address, end="now") as reader:
        assert [event.value async for event in reader] == [b"Hello World"]


async def test_text_headers_and_times(address: str, topic: str) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=timezone(timedelta(hours=2)))
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        await producer.send("thé", key="clé", headers={"a": "ü", "b": None}, timestamp=moment)
        await producer.send(bytearray(b"raw"), headers=[("a", b"1"), ("a", b"2")], timestamp=5)
        async with client.consumer(topic, end="now") as consumer:
            first, second = [event async for event in consumer]
    assert (first.value, first.key) == ("thé".encode(), "clé".encode())
    assert first.headers == (("a", "ü".encode()), ("b", None))
    assert first.time == moment
    assert (second.value, second.key, second.timestamp) == (b"raw", None, 5)
    assert second.headers == (("a", b"1"), ("a", b"2"))


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_compression(address: str, topic: str, compression: Any) -> None:
    values: list[Any] = [b"the same again %d" % (number % 10) for number in range(500)]
    async with krappy.connect(address) as client:
        async with client.producer(topic, compression=compression) as producer:
            await producer.send_columns(None, values)
        async with client.consumer(topic, end="now") as consumer:
            assert [event.value async for event in consumer] == values


async def test_keys_choose_partitions_as_kafkas_do_and_the_rest_takes_turns(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions=5)
        async with client.producer(topic) as producer:
            keys = [b"key-%d" % number for number in range(100)]
            receipts = await producer.send_many([(key, b"v") for key in keys])
            assert [receipt.partition for receipt in receipts] == [partition_for(key, 5) for key in keys]
            turns = [(await producer.send(b"no key")).partition for _ in range(10)]
            assert sorted(turns) == sorted([*range(5), *range(5)])
            assert (await producer.send(b"told", key=b"key-1", partition=4)).partition == 4
            with pytest.raises(UnknownPartition):
                await producer.send(b"x", partition=5)


async def test_columns_come_back_as_they_went_in(address: str, topic: str) -> None:
    count = 5000
    keys: list[Any] = [b"k%d" % (number % 700) if number % 11 else None for number in range(count)]
    values: list[Any] = [b"v%d" % number if number % 13 else None for number in range(count)]
    headers = [{"n": str(number)} if number % 3 == 0 else None for number in range(count)]
    times = [1_000_000 + number for number in range(count)]
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions=4)
        async with client.producer(topic, batch_bytes=5000) as producer:
            stored = await producer.send_columns(keys, values, headers=headers, timestamps=times)
        where = {row: (run.partition, run.offset + at) for run in stored for at, row in enumerate(run.rows)}
        assert sorted(where) == list(range(count))
        assert all(where[row][0] == partition_for(key, 4) for row, key in enumerate(keys) if key is not None)
        found = {}
        async with client.consumer(topic, end="now", max_records=300) as consumer:
            async for event in consumer:
                found[event.partition, event.offset] = event
    assert len(found) == count
    for row in range(count):
        event = found[where[row]]
        assert (event.key, event.value, event.timestamp) == (keys[row], values[row], times[row])
        assert event.headers == ((("n", str(row).encode()),) if row % 3 == 0 else ())


async def test_records_and_pairs_get_a_receipt_each_in_their_order(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, partitions=3)
        async with client.producer(topic) as producer:
            records = [Record(b"v%d" % number, b"k%d" % number, (("h", b"1"),), 77) for number in range(50)]
            receipts = await producer.send_many([*records, ("text", "value")])
            assert await producer.send_many([]) == []
        table = client.table(topic)
        for record, receipt in zip(records, receipts, strict=False):
            assert record.key is not None
            entry = await table.get(record.key)
            assert entry is not None
            assert (entry.partition, entry.offset, entry.timestamp) == receipt[1:]
            assert (receipt.timestamp, entry.headers) == (77, record.headers)


async def test_post_pipelines_and_keeps_the_order(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        async with client.producer(topic, batch_bytes=2000) as producer:
            deliveries = [await producer.post(b"%d" % number) for number in range(3000)]
            await producer.flush()
            assert all(delivery.done() for delivery in deliveries)
            assert [delivery.result().offset for delivery in deliveries] == list(range(3000))
        async with client.consumer(topic, end="now") as consumer:
            assert [event.value async for event in consumer] == [b"%d" % number for number in range(3000)]


async def test_a_full_buffer_makes_senders_wait_and_loses_nothing(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        async with client.producer(topic, buffer_bytes=20_000, batch_bytes=4000) as producer:
            for number in range(1000):
                await producer.post(b"x" * 200 + b"%d" % number)
        assert (await client.offsets(topic)) == {0: 1000}


async def test_leaving_the_producer_raises_what_nobody_has_looked_at(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, config={"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecord):
            async with client.producer(topic) as producer:
                await producer.post(b"a compacted topic needs keys")
        async with client.producer(topic) as producer:
            delivery = await producer.post(b"no key")
            with pytest.raises(InvalidRecord):
                await delivery
            assert isinstance(delivery.error(), InvalidRecord)
            with pytest.raises(InvalidRecord):
                await producer.send(b"no key")


async def test_an_expectation_holds_or_says_where_the_key_is(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        first = await producer.send(b"1", key=b"k", expect="absent")
        with pytest.raises(OffsetMismatch) as caught:
            await producer.send(b"again", key=b"k", expect="absent")
        assert caught.value.current == first.offset
        second = await producer.send(b"2", key=b"k", expect=first.offset)
        with pytest.raises(OffsetMismatch) as caught:
            await producer.send(b"3", key=b"k", expect=first.offset)
        assert caught.value.current == second.offset
        await producer.send(None, key=b"k", expect=second.offset)
        await producer.send(b"new", key=b"k", expect="absent")
        with pytest.raises(InvalidRequest):
            await producer.send(b"x", expect=3)
        with pytest.raises(InvalidRequest):
            await producer.send(b"x", key=b"k", expect="gone")  # type: ignore[arg-type]


async def test_expectations_among_other_events_keep_the_order(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        deliveries = []
        for number in range(60):
            expect: Any = 10**9 if number % 10 == 3 else "absent" if number % 10 == 7 else None
            deliveries.append(await producer.post(b"%d" % number, key=b"%d" % number, expect=expect))
        failed = []
        for number, delivery in enumerate(deliveries):
            try:
                await delivery
            except OffsetMismatch:
                failed.append(number)
        assert failed == list(range(3, 60, 10))
        async with client.consumer(topic, end="now") as consumer:
            found = [event.value async for event in consumer]
    assert found == [b"%d" % number for number in range(60) if number % 10 != 3]


async def test_expectations_about_many_keys_are_sent_together_and_each_is_told_its_own_outcome(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    real = Producing._answered

    def answered(self: Producing, batch: LaneBatch, route: Route, result: Any) -> None:
        sent.append(len(batch))
        real(self, batch, route, result)

    async with krappy.connect(address) as client, client.producer(topic) as producer:
        first = [await producer.post(b"v", key=b"%d" % number) for number in range(0, 400, 2)]
        offsets = {2 * number: (await delivery).offset for number, delivery in enumerate(first)}
        monkeypatch.setattr(Producing, "_answered", answered)
        deliveries = [await producer.post(b"w", key=b"%d" % number, expect="absent") for number in range(400)]
        told: list[int | None] = []
        for delivery in deliveries:
            try:
                await delivery
                told.append(None)
            except OffsetMismatch as error:
                told.append(error.current)
        assert told == [offsets.get(number) for number in range(400)]
        assert len(sent) < 10  # one for each event, before they shared batches
        found = await client.table(topic).get_many([b"%d" % number for number in range(400)])
    assert [entry.value if entry else None for entry in found] == [b"v", b"w"] * 200


@alone  # of several brokers none can decide that
async def test_an_expectation_about_a_key_that_stands_elsewhere_fails_alone(address: str, topic: str) -> None:
    keys = [b"%d" % number for number in range(50)]
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            for key in keys[::5]:
                await producer.send(b"old", key=key)
        await client.alter_topic(topic, partitions=2)
        async with client.producer(topic) as producer:
            deliveries = [await producer.post(b"new", key=key, expect="absent") for key in keys]
            stored = []
            for key, delivery in zip(keys, deliveries, strict=True):
                try:
                    await delivery
                    stored.append(key)
                except OffsetMismatch:
                    pass
    assert stored == [key for number, key in enumerate(keys) if number % 5]


async def test_one_adder_wins_when_many_tasks_count_with_expectations(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        await producer.send(b"0", key=b"counter")
        table = client.table(topic)

        async def add(times: int) -> None:
            while times:
                entry = await table.get(b"counter")
                assert entry is not None
                assert entry.value is not None
                try:
                    await producer.send(b"%d" % (int(entry.value) + 1), key=b"counter", expect=entry.offset)
                except OffsetMismatch:
                    continue
                times -= 1

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(add, 5)
        entry = await table.get(b"counter")
        assert entry is not None
        assert entry.value == b"20"


async def test_a_record_too_large_fails_alone(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, config={"max.message.bytes": 2000})
        async with client.producer(topic) as producer:
            deliveries = [await producer.post(b"x" * (3000 if number == 5 else 500)) for number in range(20)]
            failed = []
            for number, delivery in enumerate(deliveries):
                try:
                    await delivery
                except RecordTooLarge:
                    failed.append(number)
            assert failed == [5]
        async with client.consumer(topic, end="now") as consumer:
            assert len([event async for event in consumer]) == 19


async def test_a_record_too_large_is_named(address: str, topic: str) -> None:
    """Whatever makes it large, and whether or not it is alone in its batch."""
    async with krappy.connect(address) as client:
        await client.create_topic(topic, config={"max.message.bytes": 2000})
        large: list[tuple[bytes | None, bytes, dict[str, bytes], str]] = [
            (b"u7", b"x" * 3000, {}, "3002 bytes, has the key b'u7'"),
            (None, b"x" * 3000, {}, "3000 bytes, has no key"),
            (b"h", b"x", {"a": b"x" * 3000}, "3002 bytes, has the key b'h'"),
            (b"k" * 3000, b"x", {}, f"3001 bytes, has the key b'{'k' * 100}'…"),
        ]
        async with client.producer(topic) as producer:
            for key, value, headers, told in large:
                await producer.post(b"small", key=b"small")
                with pytest.raises(RecordTooLarge) as caught:
                    await (await producer.post(value, key=key, headers=headers))
                assert caught.value.text.startswith(f"{topic}-0: a batch of ")
                assert told in caught.value.text
                assert (caught.value.topic, caught.value.key) == (topic, key)


@pytest.mark.parametrize(
    ("value", "more"),
    [
        (5, {}),
        ("x", {"key": 5}),
        ("x", {"headers": {"a": 5}}),
        ("x", {"headers": {5: b"a"}}),
        ("x", {"headers": 5}),
        ("x", {"timestamp": datetime(2024, 1, 1)}),
        ("x", {"timestamp": "now"}),
        ("x", {"timestamp": -2}),
        ("x", {"timestamp": datetime(1969, 1, 1, tzinfo=UTC)}),
        ("\ud800", {}),
    ],
)
async def test_what_is_no_record_is_refused_at_once(address: str, topic: str, value: Any, more: Any) -> None:
    async with krappy.connect(address) as client, client.producer("bad-records") as producer:
        with pytest.raises(InvalidRecord):
            await producer.send(value, **more)
        with pytest.raises(InvalidRecord):
            await producer.send_columns([b"k"], [b"a", b"b"])
        with pytest.raises(InvalidRecord, match="before 1970"):
            await producer.send_columns(None, [b"a", b"b"], timestamps=[5, -2])
        await producer.send("fine")


@pytest.mark.parametrize("wrong", [{"timestamp": 2**63}, {"expect": 2**64}, {"headers": {"\udcff": b"x"}}])
async def test_an_event_that_can_t_be_sent_harms_no_other(address: str, topic: str, wrong: Any) -> None:
    """Such an event used to end the sender, and with it all events that waited, the producer, and an async program."""
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        before = await producer.post("before")
        with pytest.raises(KrappyError):
            await producer.post("wrong", key="k", **wrong)
        await producer.send("after")
        assert (await before).offset == 0


async def test_unknown_settings_of_a_producer(address: str) -> None:
    async with krappy.connect(address) as client:
        with pytest.raises(ConfigError):
            client.producer("x", compression="lzma")  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            client.producer("x", linger_ms=-1)
        for name in ("linger_ms", "batch_bytes", "buffer_bytes", "timeout"):
            with pytest.raises(ConfigError, match=name):
                client.producer("x", **{name: float("nan")})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout=inf"):
            client.producer("x", timeout=float("inf"))
        with pytest.raises(KrappyError, match="not open"):
            await client.producer("x").send(b"x")


async def test_log_append_time_is_what_receipts_tell(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
        async with client.producer(topic) as producer:
            receipt = await producer.send(b"x", timestamp=5)
            many = await producer.send_many([Record(b"x", timestamp=6), Record(b"y", timestamp=7)])
        async with client.consumer(topic, end="now") as consumer:
            assert [event.timestamp async for event in consumer] == [each.timestamp for each in [receipt, *many]]
        assert receipt.timestamp > 10**12


async def test_the_short_form_leaves_every_producer(address: str, topic: str) -> None:
    """The failure of one producer does not cost the events of another."""

    async def fail() -> None:
        async with krappy.Producer(address) as producer:
            bad = await producer.topic(topic + "-bad")
            await bad.post(b"no key")
            good = await producer.topic(topic)
            for _ in range(10):
                await good.post(b"x")

    async with krappy.connect(address) as client:
        await client.create_topic(topic + "-bad", config={"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecord):
            await fail()
        assert await client.offsets(topic) == {0: 10}


async def test_many_senders_wait_in_line_for_room(address: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with gather(): each sender is woken about once, not whenever there is room for somebody."""
    count, waits, wait = 3000, 0, AnyioSignal.wait

    async def counted(signal: AnyioSignal, seconds: float | None = None) -> bool:
        nonlocal waits
        waits += 1
        return await wait(signal, seconds)

    async with krappy.connect(address) as client:
        async with client.producer(topic, buffer_bytes=30_000) as producer, anyio.create_task_group() as tasks:
            monkeypatch.setattr(AnyioSignal, "wait", counted)

            async def send(number: int) -> None:
                await producer.send(b"x" * 1000, key=str(number))

            for number in range(count):
                tasks.start_soon(send, number)
        assert waits < 6 * count
        async with client.consumer(topic, end="now") as consumer:
            keys = [event.key async for event in consumer]
        assert len(keys) == count
        assert set(keys) == {b"%d" % number for number in range(count)}


async def test_a_sender_that_leaves_the_line_holds_up_nobody(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        async with client.producer(topic, buffer_bytes=5_000) as producer, anyio.create_task_group() as tasks:
            stored = 0

            async def send(cancelled: bool) -> None:
                nonlocal stored
                with anyio.CancelScope() as scope:
                    if cancelled:
                        tasks.start_soon(cancel, scope)
                    await producer.send(b"x" * 1000)
                    stored += 1

            async def cancel(scope: anyio.CancelScope) -> None:
                await anyio.lowlevel.checkpoint()
                scope.cancel()

            for number in range(300):
                tasks.start_soon(send, number % 3 == 0)
        assert stored >= 200


def test_a_producer_whose_topic_can_t_be_made_says_why(tmp_path: Path) -> None:
    """The broker tells a reason that may pass, so the client tries again for its timeout."""
    data = tmp_path / "data"
    with (
        run_broker(data) as broker,
        krappy.blocking.connect(broker.address) as client,
        client.producer("t") as producer,
    ):
        producer.send("of a topic that is not known any more").result(60)
    shutil.rmtree(data / "meta")
    (data / "meta").mkdir()
    (data / "meta" / ACCEPT).touch()
    with run_broker(data) as broker, krappy.blocking.connect(broker.address, timeout=0.5) as client:
        producer = client.producer("t")
        with pytest.raises(StorageError, match="holds events that belong to no topic"):
            producer.__enter__()
