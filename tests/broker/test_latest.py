"""`TOPIC@latest`, straight on a broker: one record for each live key, then every event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.core.latest import TableReading
from krappy.errors import StorageError, UnknownTopic, ViewDisabled
from krappy.records import batch
from tests.broker.latest import Consumer, content, run, tables_of, topic, write


def test_one_record_per_live_key_then_every_event(tmp_path: Path) -> None:
    async def body(broker: LocalBroker) -> None:
        partition = await topic(broker)
        await write(partition, ("a", "1"), ("b", "1"), ("c", "1"))
        await write(partition, ("a", "2"), ("c", None), ("d", "1"))
        await write(partition, ("e", "1"), ("e", None), ("a", "3"))
        consumer = Consumer(room=1 << 20)
        await consumer.finish(tables_of(broker), partition)
        assert consumer.rows == [(1, b"b", b"1"), (5, b"d", b"1"), (8, b"a", b"3")]
        await write(partition, ("b", "2"), ("b", None), ("a", "4"))
        await consumer.finish(tables_of(broker), partition)
        assert consumer.rows[3:] == [(9, b"b", b"2"), (10, b"b", None), (11, b"a", b"4")]

    run(body, tmp_path)


def test_nothing_is_left_but_its_offsets(tmp_path: Path) -> None:
    async def body(broker: LocalBroker) -> None:
        partition = await topic(broker)
        await write(partition, ("a", "1"), ("a", None))
        reading = TableReading()
        assert reading.at(0, 0, 2)
        some = await tables_of(broker).read(partition, reading, 0, 1 << 20)
        [(header, _)] = batch.split(content(some))
        assert (header.count, header.base_offset, header.next_offset) == (0, 0, 2)
        assert some.following == 2
        assert not reading.at(2, 0, 2)

    run(body, tmp_path)


def test_a_deletion_is_given_to_whoever_may_know_what_it_deletes(tmp_path: Path, small: None) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker)
        await write(partition, ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"))
        first, other = Consumer(), Consumer()
        for consumer in (first, other):
            await consumer.finish(tables, partition)
            consumer.reconnect()
        await write(partition, ("a", None), ("b", "2"), ("b", None), ("x", "1"), ("x", "2"))
        await first.finish(tables, partition)
        assert first.rows[4:] == [(4, b"a", None), (6, b"b", None), (8, b"x", b"2")]  # 5 events behind: far behind
        other.position = 7
        await other.finish(tables, partition)
        assert other.rows[4:] == [(7, b"x", b"1"), (8, b"x", b"2")]  # near the end: everything
        anew = Consumer()
        await anew.finish(tables, partition)
        assert anew.rows == [(2, b"c", b"1"), (3, b"d", b"1"), (8, b"x", b"2")]

    run(body, tmp_path)


def test_whoever_lost_its_place_is_given_deletions_from_the_start_on(tmp_path: Path) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker, segment_bytes=100), tables_of(broker)
        await write(partition, ("a", "1"))
        consumer = Consumer()
        await consumer.finish(tables, partition)
        await write(partition, ("b", "1"))
        await write(partition, ("a", None))
        await write(partition, ("c", "1"))
        partition.log.delete_before(2)
        consumer.reconnect()
        await consumer.finish(tables, partition)
        assert consumer.rows[1:] == [(2, b"a", None), (3, b"c", b"1")]
        anew = Consumer()
        anew.position = 2
        anew.reading.told_earliest(2)
        await anew.finish(tables, partition)
        assert anew.rows == [(3, b"c", b"1")]

    run(body, tmp_path)


@pytest.mark.parametrize("codec", range(5))
def test_records_come_as_they_were_written(tmp_path: Path, codec: int) -> None:
    """Headers, timestamps, and lengths of every kind, out of compressed batches too."""

    async def body(broker: LocalBroker) -> None:
        partition = await topic(broker)
        count = 300
        keys: list[bytes | None] = [b"key-%d" % (number % 250) for number in range(count)]
        values = [bytes([number % 251]) * (number * 7 % 300) for number in range(count)]
        headers = [(("name", b"x" * number), ("none", None)) if number % 3 else () for number in range(count)]
        times = [1_000 + number * number for number in range(count)]
        data = batch.encode(keys, list(values), timestamps=times, headers=headers, codec=codec)
        await partition.publish(data).wait()
        reading = TableReading()
        assert reading.at(0, 0, count)
        some = await tables_of(broker).read(partition, reading, 0, 1 << 20)
        [(_, view)] = batch.split(content(some))
        columns = batch.decode(view)
        assert list(columns.offsets) == list(range(50, count))
        assert columns.keys == keys[50:]
        assert columns.values == values[50:]
        assert columns.timestamps == times[50:]
        assert columns.headers == headers[50:]

    run(body, tmp_path)


def test_a_set_is_shared_and_all_of_them_are_bounded(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    monkeypatch.setattr("krappy.broker.latest.latest_sets.LEAST", 1)

    async def body(broker: LocalBroker) -> None:
        partition = await topic(broker)
        for number in range(100):
            await write(partition, (f"k{number}", "1"))
        tables = tables_of(broker, room=400)  # too little for all of its offsets
        consumers = [Consumer(room=50) for _ in range(20)]
        making = 0
        made = tables.sets._make

        async def counted(*args: Any) -> Any:
            nonlocal making
            making += 1
            return await made(*args)

        monkeypatch.setattr(tables.sets, "_make", counted)
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(consumer.finish, tables, partition)
        for consumer in consumers:
            assert [row[0] for row in consumer.rows] == list(range(100))
        assert tables.sets.size <= 400
        assert 2 <= making <= 60, "each window is made once, about, whoever reads it"
        tables.forget(partition.number)
        assert not tables.sets.size

    run(body, tmp_path)


def test_a_topic_without_a_view_has_no_table(tmp_path: Path) -> None:
    async def body(broker: LocalBroker) -> None:
        partition = await topic(broker, view_enable="false")
        await write(partition, ("a", "1"))
        reading = TableReading()
        assert reading.at(0, 0, 1)
        with pytest.raises(ViewDisabled):
            await tables_of(broker).read(partition, reading, 0, 1 << 20)

    run(body, tmp_path)


@pytest.mark.parametrize("ending", ["off", "off and on", "deleted"])
def test_a_view_that_goes_away_under_a_reader_is_no_empty_table(tmp_path: Path, monkeypatch: Any, ending: str) -> None:
    monkeypatch.setattr("krappy.broker.latest.latest_sets.SLICE", 1)

    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker)
        await write(partition, *((f"k{number}", "1") for number in range(100)))
        reading = TableReading()
        assert reading.at(0, 0, 100)
        refused = gone = False
        entries = broker.views.entries

        def slow(number: int, after: bytes | None, count: int, max_bytes: int) -> Any:
            """Gets no further than its first slice before the view is gone."""
            return entries(number, after, count, max_bytes) if gone or after is None else ([], after)

        monkeypatch.setattr(broker.views, "entries", slow)

        async def read() -> None:
            nonlocal refused
            with pytest.raises((ViewDisabled, StorageError, UnknownTopic)):
                await tables.read(partition, reading, 0, 1 << 20)
            refused = True

        async with trio.open_nursery() as nursery:
            await partition.view_wait(None, 30)
            nursery.start_soon(read)
            while not tables.sets._making:
                await trio.lowlevel.checkpoint()
            if ending == "deleted":
                await broker.delete_topic("t")
            else:
                await broker.alter_topic("t", {"view.enable": "false"}, None)
                if ending == "off and on":
                    await broker.alter_topic("t", {"view.enable": "true"}, None)
            gone = True
        assert refused
        assert not tables.sets.size

    run(body, tmp_path)
