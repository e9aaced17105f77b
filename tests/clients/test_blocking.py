"""The blocking client against a real broker. What it shares with the async client is tested there. Here is what
differs: futures, threads, and that each way of waiting works."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any

import pytest

from krappy import blocking
from krappy.clients.sync import connection
from krappy.clients.sync.io import ThreadRuntime, ThreadSignal
from krappy.clients.watch_progress import SnapshotEnd
from krappy.errors import (
    ConnectionLost,
    InvalidRecord,
    KrappyError,
    LeaseLost,
    OffsetMismatch,
    RequestTimeout,
    TopicExists,
    UnknownTopic,
)
from krappy.types import Record, TopicPartition
from tests.clients.proxy import Proxy


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    """Every client ends what it started."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("krappy")]
    assert not left


def test_the_lines_that_users_read_first(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic, partitions=3, config={"cleanup.policy": "compact"})
        with client.producer(topic) as producer:
            future = producer.send("Ada", key="u1")
            receipt = future.result(timeout=30)
        entry = client.table(topic).get("u1")
        assert entry is not None
        assert (entry.value, entry.offset, entry.partition) == (b"Ada", receipt.offset, receipt.partition)
        with client.consumer(topic, group=topic) as consumer:
            for event in consumer:
                assert event.value == b"Ada"
                consumer.ack(event)
                break
        assert client.group(topic).lag == 0


def test_the_short_form(address: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRAPPY_ADDRESS", address)
    with blocking.Producer() as producer:
        producer.send(topic, "Hello World")
    with blocking.Consumer(topic, end="now") as consumer:
        assert [event.value for event in consumer] == [b"Hello World"]


def test_futures_are_done_when_the_producer_is_left(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        with client.producer(topic, batch_bytes=3000) as producer:
            futures = [producer.send(b"%d" % number) for number in range(5000)]
        assert all(future.done() for future in futures)
        assert [future.result().offset for future in futures] == list(range(5000))
        with client.consumer(topic, end="now") as consumer:
            assert [event.value for event in consumer] == [b"%d" % number for number in range(5000)]


def test_futures_are_those_of_the_standard_library(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        told: list[int] = []
        futures = [producer.send(b"x") for _ in range(10)]
        for future in futures:
            future.add_done_callback(lambda done: told.append(done.result().offset))
        assert wait(futures, timeout=30).not_done == set()
        assert not futures[0].cancel()
        producer.flush()
        assert sorted(told) == list(range(10))


def test_a_failure_that_nobody_has_looked_at_is_raised(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic, config={"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecord), client.producer(topic) as producer:
            producer.send("no key")
        with client.producer(topic) as producer:
            future = producer.send("no key")
            assert isinstance(future.exception(timeout=30), InvalidRecord)
            producer.send("fine", key="k")


def test_a_failure_that_came_after_somebody_looked_is_raised(lossy: Proxy, topic: str) -> None:
    with blocking.connect(lossy.address) as client:
        client.create_topic(topic, config={"cleanup.policy": "compact"})
        with client.producer(topic) as producer:
            for look in ("result", "exception"):
                lossy.deafen()
                future = producer.send("no key")
                with pytest.raises(TimeoutError):
                    getattr(future, look)(0.05)
                lossy.cut()
                with pytest.raises(InvalidRecord):
                    producer.flush()


def test_a_table_is_written(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        table = client.table(topic)
        first = table.put("k", "1", expect="absent")
        with pytest.raises(OffsetMismatch):
            table.put("k", "2", expect="absent")
        assert table.update("k", lambda value: (value or b"") + b"2").offset == first.offset + 1
        assert [entry.value for entry in table.scan()] == [b"12"]
        table.delete("k")
        assert [entry.deleted for entry in table.scan(tombstones=True)] == [True]
    with pytest.raises(KrappyError):
        table.put("k", "3")


def test_pauses_take_no_random_numbers_of_the_program(address: str, topic: str) -> None:
    """The program may have seeded them, so that it does the same each time."""
    before = random.getstate()
    with blocking.connect(address) as client, blocking.connect(address) as other:
        ours, theirs = client.table(topic), other.table(topic)
        seen: list[bytes | None] = []

        def overtaken(value: bytes | None) -> str:
            if not seen:
                theirs.put("k", "theirs")
            seen.append(value)
            return "ours"

        ours.update("k", overtaken)
        assert seen == [None, b"theirs"]
    with pytest.raises(ConnectionLost):
        blocking.connect("127.0.0.1:1", timeout=0.3).open()
    assert random.getstate() == before


def test_threads_update_one_key(address: str, topic: str) -> None:
    with blocking.connect(address) as client, ThreadPoolExecutor(4) as pool:
        table = client.table(topic)
        done = [pool.submit(table.update, "n", lambda value: str(int(value or 0) + 1)) for _ in range(20)]
        for each in done:
            each.result(30)
        assert [entry.value for entry in table.scan()] == [b"20"]


def test_expectations(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        first = producer.send("1", key="k", expect="absent").result()
        with pytest.raises(OffsetMismatch) as caught:
            producer.send("1", key="k", expect="absent").result()
        assert caught.value.current == first.offset
        assert producer.post("2", key="k", expect=first.offset).result().offset == 1


def test_columns_and_records(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic, partitions=2)
        with client.producer(topic, compression="zstd") as producer:
            keys: list[Any] = [b"%d" % number for number in range(1000)]
            stored = producer.send_columns(keys, keys, timestamps=datetime(2024, 1, 1, tzinfo=UTC))
            assert sorted(row for run in stored for row in run.rows) == list(range(1000))
            receipts = producer.send_many([("a", "1"), Record(b"2", b"b")])
            assert len(receipts) == 2
            assert producer.post_columns(None, []).result() == []
        with client.consumer(topic, end="now") as consumer:
            assert sum(len(batch) for batch in consumer.batches()) == 1002


def test_a_full_buffer_makes_the_sender_wait(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        with client.producer(topic, buffer_bytes=20_000, batch_bytes=4000) as producer:
            for _ in range(2000):
                producer.send(b"x" * 200)
        assert client.offsets(topic) == {0: 2000}


def test_the_table(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        producer.send_many([(f"k{number:03}", str(number)) for number in range(300)])
        producer.send(None, key="k007").result()
        table = client.table(topic)
        gone = table.get("k007")
        assert gone is not None
        assert gone.deleted
        assert [entry and entry.value for entry in table.get_many(["k001", "x"])] == [b"1", None]
        assert len(list(table.scan(prefix="k"))) == 299
        scan = table.scan(page_entries=50)
        assert [len(page) for page in scan.pages()] == [50] * 5 + [49]
        assert scan.offsets == {0: 301}
        assert [entry.value for entry in table.history("k007")] == [b"7", None]
        for _ in table.scan(page_entries=10):
            break


def test_a_watch(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        producer.send("1", key="a").result()
        seen: list[Any] = []
        for item in client.table(topic).watch():
            if isinstance(item, SnapshotEnd):
                producer.send("2", key="b")
                continue
            seen.append((item.key, item.value))
            if len(seen) == 2:
                break
        assert seen == [(b"a", b"1"), (b"b", b"2")]
        del item
        gc.collect()
        with client.table(topic).watch(prefix="b") as watch:
            assert next(watch).key == b"b"  # type: ignore[union-attr]
            assert watch.offsets is None
            assert next(watch) == SnapshotEnd({0: 2})
            assert watch.offsets == {0: 2}
            threading.Timer(0.05, watch.close).start()  # before or after the wait has begun: it ends either way
            with pytest.raises(ConnectionLost):
                next(watch)


def test_readers(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        producer.send_columns(None, [b"%d" % number for number in range(100)])
        with client.consumer(topic, start=90, end="now") as consumer:
            assert [event.offset for event in consumer] == list(range(90, 100))
        with client.consumer(topic) as consumer:
            assert next(consumer).offset == 0
            consumer.seek(0, 50)
            assert consumer.positions == {TopicPartition(topic, 0): 50}
            assert [event.offset for event in consumer.poll(10)] == list(range(50, 100))
            assert consumer.poll(0.01) == []


def test_members(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        producer.send_columns(None, [b"%d" % number for number in range(20)])
        with client.consumer(topic, group=topic, lease_ms=10_000) as one:
            batch = next(one.batches())
            one.extend(batch, lease_ms=60_000)
            one.nack([event for event in batch.events() if event.offset < 5])
            with client.consumer(topic, group=topic) as two:
                again = [next(two) for _ in range(5)]
                with pytest.raises(LeaseLost):
                    one.ack(again, wait=True)
                two.ack(again)
            one.ack(batch)
        assert client.group(topic).lag == 0
        [moved] = client.reset_group(topic, "earliest")
        assert (moved.old, moved.new) == (20, 0)
        client.commit(topic, {TopicPartition(topic, 0): 3})
        assert client.positions(topic) == {TopicPartition(topic, 0): 3}
        assert topic in [group.group for group in client.groups()]
        client.delete_group(topic)


def test_topics(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        assert client.create_topic(topic)
        with pytest.raises(TopicExists):
            client.create_topic(topic)
        client.alter_topic(topic, {"retention.ms": 5}, partitions=2)
        assert len(client.describe(topic).partitions) == 2
        assert topic in [each.name for each in client.topics()]
        client.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            client.describe(topic)
        assert client.ping().version


def test_many_threads_use_one_client(address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic) as producer:
        table = client.table(topic)

        def work(number: int) -> None:
            for turn in range(30):
                key = f"{number}"
                receipt = producer.send(f"{turn}", key=key).result(timeout=30)
                entry = table.get(key, min_offset=receipt.offset)
                assert entry is not None
                assert (entry.offset, entry.value) == (receipt.offset, str(turn).encode())

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))
        assert client.offsets(topic) == {0: 16 * 30}


def test_a_watch_that_is_closed_before_it_begins_does_not_wait(address: str, topic: str) -> None:
    """As when its thread has not come to open the watch yet."""
    with blocking.connect(address) as client:
        client.create_topic(topic)
        watch = client.table(topic).watch()
        watch.close()
        with pytest.raises(ConnectionLost):
            next(watch)


def test_a_sender_who_is_held_up_holds_up_nobody_else(lossy: Proxy, topic: str) -> None:
    """The broker's machine is gone, or takes nothing: what is sent fills the socket, and there the next send waits."""
    with (
        blocking.connect(lossy.address, timeout=2.5) as client,
        blocking.connect(lossy.address, keepalive=0.5) as other,
    ):
        other.create_topic(topic, partitions=16)
        for each in (client, other):
            with each.producer(topic) as producer:
                producer.send("first", key="k").result()
                lossy.stall()
                futures = [producer.send(b"x" * 300_000, partition=number % 16) for number in range(100)]
                began = time.monotonic()
                if each is client:
                    with pytest.raises(RequestTimeout):
                        client.table(topic).get("k")
                    lossy.cut()
                else:
                    assert other.table(topic).get("k") is not None  # over another connection
                assert time.monotonic() - began < 15
                wait(futures, timeout=60)
        assert sum(other.offsets(topic).values()) == 202


def test_closing_ends_whoever_waits(address: str, topic: str) -> None:
    ended: list[BaseException] = []

    def wait_for_ever(use: Callable[[], object]) -> None:
        try:
            use()
        except KrappyError as error:
            ended.append(error)

    with blocking.connect(address) as client:
        client.create_topic(topic)
        consumer = client.consumer(topic).__enter__()
        watch = client.table(topic).watch().__enter__()
        assert isinstance(next(watch), SnapshotEnd)
        threads = [
            threading.Thread(target=wait_for_ever, args=(lambda: next(consumer),)),
            threading.Thread(target=wait_for_ever, args=(lambda: next(watch),)),
        ]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert [type(error) for error in ended] == [ConnectionLost, ConnectionLost], ended


def test_closing_ends_the_sender_of_a_producer_with_nothing_to_send(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender waits for its program, not for the broker: no answer that fails tells it that there is no connection
    now."""
    idle, wait_for = threading.Event(), ThreadSignal.wait
    monkeypatch.setattr(connection, "PARTING", 60.0)

    def waits(signal: ThreadSignal, seconds: float | None = None) -> Any:
        if threading.current_thread().name == f"krappy producer to {topic}":
            idle.set()
        return wait_for(signal, seconds)

    monkeypatch.setattr(ThreadSignal, "wait", waits)
    client = blocking.connect(address).open()
    client.create_topic(topic)
    producer = client.producer(topic).open()
    assert idle.wait(30)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 30
    with pytest.raises(ConnectionLost):
        producer.send("late")
    producer.close()


def test_whoever_asks_late_is_told_that_the_client_was_closed(address: str) -> None:
    """They are not told how the end of the connection looked to its reader."""
    with blocking.connect(address) as client:
        link = client._connection.link
    assert link.broken == "the client is closed"


def test_closing_while_a_thread_is_about_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, ended = threading.Event(), threading.Event()
    start = threading.Thread.start

    def slow(self: threading.Thread) -> None:
        if self.name == "krappy slow":
            starting.set()
            ended.wait(0.3)
        start(self)

    async def work() -> None:
        pass

    runtime = ThreadRuntime()
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(threading.Thread, "start", slow)
        spawning = pool.submit(runtime.spawn, work, "krappy slow")
        assert starting.wait(30)
        runtime.join(30)
        ended.set()
        spawning.result(30)


def test_a_watch_of_a_client_that_is_not_open(address: str, topic: str) -> None:
    """A watch has a connection of its own, which only the client's end would end."""
    client = blocking.connect(address)
    table = client.table(topic)
    with pytest.raises(KrappyError, match="not open"):
        table.watch()
    with client:
        client.create_topic(topic)
        table.watch().close()
    with pytest.raises(KrappyError, match="not open"):
        table.watch()


def test_a_client_that_is_not_open(address: str) -> None:
    client = blocking.connect(address)
    with pytest.raises(KrappyError, match="not open"):
        client.ping()
    with client:
        client.ping()
    with client:
        client.ping()
    with pytest.raises(ConnectionLost, match="krappy serve"), blocking.connect("127.0.0.1:1"):
        pass


def test_a_timeout_bounds_an_operation(lossy: Proxy) -> None:
    with blocking.connect(lossy.address, timeout=0.3) as client:
        lossy.deafen()
        with pytest.raises(RequestTimeout):
            client.ping()


def test_nothing_is_stored_twice_or_lost_when_connections_are_lost(lossy: Proxy, address: str, topic: str) -> None:
    count = 3000
    with blocking.connect(lossy.address) as client, client.producer(topic, batch_bytes=1500) as producer:
        futures = []
        for number in range(count):
            futures.append(producer.send(b"%d" % number))
            if number % 300 == 150:
                lossy.deafen()
            if number % 300 == 299:
                threading.Event().wait(0.02)
                lossy.cut()
        assert [future.result(timeout=60).offset for future in futures] == list(range(count))
        table_reads = [client.offsets(topic)]
        lossy.cut()
        table_reads.append(client.offsets(topic))
        assert table_reads == [{0: count}] * 2
    assert lossy.accepted > 2
    with blocking.connect(address) as client, client.consumer(topic, end="now") as consumer:
        assert [event.value for event in consumer] == [b"%d" % number for number in range(count)]


def test_a_reader_goes_on_exactly_where_it_was(lossy: Proxy, address: str, topic: str) -> None:
    with blocking.connect(address) as client, client.producer(topic, batch_bytes=2000) as producer:
        producer.send_columns(None, [b"x" * 20] * 3000)
    seen = []
    with blocking.connect(lossy.address) as client, client.consumer(topic, max_bytes=3000, end="now") as consumer:
        for event in consumer:
            seen.append(event.offset)
            if event.offset % 500 == 250:
                lossy.cut()
    assert seen == list(range(3000))
    assert lossy.accepted > 2


def test_producers_that_close_at_every_moment_of_their_sender(address: str, topic: str) -> None:
    """A sender that is about to sleep must notice that its producer closes, for nothing else would wake it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with blocking.connect(address) as client:
            for _ in range(400):
                with client.producer(topic):
                    pass
    finally:
        sys.setswitchinterval(interval)


def test_all_of_it_goes_without_with(address: str, topic: str) -> None:
    client = blocking.connect(address)
    assert "not open" in repr(client)
    with pytest.raises(KrappyError, match=r"open\(\)"):
        client.ping()
    assert client.open() is client
    assert repr(client) == f"<krappy.blocking.Client of {address}, open>"
    with pytest.raises(KrappyError, match="already"):
        client.open()
    producer = client.producer(topic).open()
    producer.send("v", key="k")
    with pytest.raises(KrappyError, match="already"):
        producer.open()
    producer.close()
    producer.close()
    consumer = client.consumer(topic, end="now").open()
    assert [event.value for event in consumer] == [b"v"]
    consumer.close()
    consumer.close()
    client.close()
    client.close()
    with pytest.raises(KrappyError, match="not open"):
        client.ping()
    with blocking.connect(address) as again, again.consumer(topic) as one, pytest.raises(KrappyError, match="already"):
        one.open()
    short = blocking.Producer(address).open()
    receipt = short.send(topic, "w").result()
    short.close()
    assert receipt.topic == topic
