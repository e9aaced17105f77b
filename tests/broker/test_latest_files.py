"""`TOPIC@latest` out of a file: made for the first reader, or ahead of it, and sent to those after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.latest.ahead import Ahead
from krappy.broker.latest.latest import LatestTables
from krappy.broker.partition.partition import Partition
from krappy.core.latest import TableReading
from krappy.records import batch
from krappy.types import FilePart
from tests.broker.latest import Consumer, content, run, table, tables_of, topic, write


async def read_file(tables: LatestTables, partition: Partition, room: int = 200) -> tuple[bytes, int]:
    """All that a new reader is given of the first part, and how many of its answers came from a file."""
    reading, at, data, from_file = TableReading(), 0, b"", 0
    reading.told_earliest(partition.start_offset)
    while at < partition.last_stable_offset and reading.at(at, partition.start_offset, partition.last_stable_offset):
        some = await tables.read(partition, reading, at, room)
        data += content(some)
        from_file += isinstance(some.records, FilePart)
        at = some.following
    return data, from_file


def test_what_was_made_for_one_is_sent_to_the_next_from_a_file(tmp_path: Path, small: None) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker)
        for number in range(40):
            await write(partition, (f"k{number}", "1"), ("same", str(number)))
        made, from_file = await read_file(tables, partition)
        assert not from_file
        assert tables.sets.disk_size >= len(made) > 0
        again, from_file = await read_file(tables, partition)
        assert again == made
        assert from_file > 5
        small_parts, from_file = await read_file(tables, partition, room=1)
        assert not from_file, "a file has no parts as small as that"
        assert [header.base_offset for header, _ in batch.split(small_parts)] == [
            header.base_offset for header, _ in batch.split(made)
        ]
        named = {"lock", "meta", "reached", "staging", "topics", "views"}
        assert {path.name for path in tmp_path.iterdir()} == named, "it has no name"
        await write(partition, ("k3", "2"))
        changed, from_file = await read_file(tables, partition)
        assert [header.count for header, _ in batch.split(changed)][-1] == 1
        assert changed != made

    run(body, tmp_path)


def test_many_who_begin_at_once_are_given_what_one_of_them_made(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker)
        for number in range(100):
            await write(partition, (f"k{number}", "1"))
        looked = 0
        read = partition.read

        async def counted(*args: Any, **more: Any) -> Any:
            nonlocal looked
            looked += 1
            await trio.lowlevel.checkpoint()
            return await read(*args, **more)

        monkeypatch.setattr(type(partition), "read", lambda self, *args, **more: counted(*args, **more))
        await read_file(tables, partition)
        alone, looked = looked, 0
        tables.forget(partition.number)
        consumers = [Consumer(room=200) for _ in range(20)]
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(consumer.finish, tables, partition)
        assert looked == alone > 3
        for consumer in consumers:
            assert [row[0] for row in consumer.rows] == list(range(100))

    run(body, tmp_path)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_table_that_changed_is_made_out_of_the_file_before(
    tmp_path: Path, small: None, monkeypatch: Any, damaged: bool
) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker)
        want = {}
        for number in range(300):
            key = f"k{number * 7 % 200}"
            want[key] = await write(partition, (key, "1" * (number % 5)), ("same", str(number)))
        await read_file(tables, partition)
        looked: list[int] = []
        read_span = partition.log.read_span

        def noted(offset: int, *args: Any, **more: Any) -> Any:
            looked.append(offset)
            return read_span(offset, *args, **more)

        monkeypatch.setattr(partition.log, "read_span", noted)
        for key in ("k3", "k50", "new"):
            want[key] = await write(partition, (key, "2"), ("same", key))
        want["same"] = partition.last_stable_offset - 1
        if damaged:
            [held] = tables.sets._held[partition.number]
            assert held.file._file is not None
            held.file._file.write([b"?"], held.file.size // 2)
        looked.clear()
        made, from_file = await read_file(tables, partition)
        assert not from_file
        assert bool([offset for offset in looked if offset < 600]) == damaged
        rows = [
            (key, offset)
            for _, view in batch.split(made)
            for columns in [batch.decode(view)]
            for offset, key in zip(columns.offsets, columns.keys, strict=True)
        ]
        assert rows == sorted(((key.encode(), at) for key, at in want.items()), key=lambda row: row[1])
        assert all(held.before is None for held in tables.sets._held[partition.number])
        again, from_file = await read_file(tables, partition)
        assert again == made
        assert from_file

    run(body, tmp_path)


def test_a_table_made_ahead_serves_its_first_reader_and_those_after_more_was_written(
    tmp_path: Path, small: None
) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker, latest_ahead_enable=True), tables_of(broker)
        maker = Ahead(broker, tables)
        await maker.look()
        assert not tables.sets.size, "there is nothing to make a table of"
        for number in range(40):
            await write(partition, (f"k{number}", "1"), ("same", str(number)))
        await maker.look()
        held = tables.sets._held[partition.number]
        made, from_file = await read_file(tables, partition)
        assert from_file > 5
        assert tables.sets._held[partition.number] == held, "its reader made nothing"

        for number in range(30):  # fewer than it has keys
            await write(partition, (f"k{number}", "2"))
        await maker.look()
        consumer = Consumer(room=200)
        await consumer.finish(tables, partition)
        assert tables.sets._held[partition.number] == held
        assert [row[0] for row in consumer.rows][-30:] == list(range(80, 110)), "every event from then on"
        assert consumer.held == await table(broker, partition)

        for number in range(30):  # more than it has
            await write(partition, (f"k{number}", "3"))
        await maker.look()
        assert tables.sets._held[partition.number] != held
        consumer = Consumer(room=200)
        await consumer.finish(tables, partition)
        assert len(consumer.rows) == 41
        assert (await read_file(tables, partition))[0] != made

    run(body, tmp_path)


def test_what_is_made_ahead_and_has_no_room_is_not_made_again_and_again(tmp_path: Path, small: None) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker, latest_ahead_enable=True), tables_of(broker, disk_room=100)
        maker = Ahead(broker, tables)
        for number in range(20):
            await write(partition, (f"k{number}", "1"))
        await maker.look()
        tables.forget(partition.number)  # as for the room of others
        await maker.look()
        assert partition.number not in tables.sets._held
        for number in range(4):
            await write(partition, (f"k{number}", "2"))
        await maker.look()
        assert partition.number in tables.sets._held

    run(body, tmp_path)


@pytest.mark.parametrize("compacted", [True, False])
def test_a_table_made_ahead_is_not_followed_by_what_may_have_been_compacted(
    tmp_path: Path, small: None, compacted: bool
) -> None:
    async def body(broker: LocalBroker) -> None:
        policy = "compact" if compacted else "delete"
        partition = await topic(
            broker,
            latest_ahead_enable=True,
            cleanup_policy=policy,
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=0,
            segment_bytes=400,
        )
        tables = tables_of(broker)
        for number in range(20):
            await write(partition, (f"k{number}", "1"))
        await Ahead(broker, tables).look()
        moment = tables.sets._held[partition.number][0].moment
        await write(partition, ("k3", None))
        while partition.log.segments[-1].base_offset <= moment:
            await write(partition, ("k4", "2"))
        if compacted:
            await partition.view_wait(None, 30)
            await broker.housekeeper.clean(partition, broker.now_ms())
        consumer = Consumer(room=200)
        await consumer.finish(tables, partition)
        assert b"k3" not in consumer.held
        assert (tables.sets._held[partition.number][0].moment > moment) == compacted

    run(body, tmp_path)


def test_files_are_bounded_and_go_when_nobody_reads(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker, disk_room=2000)
        for number in range(100):
            await write(partition, (f"k{number}", "1"))
        for _ in range(2):
            data, _ = await read_file(tables, partition)
            assert [header.base_offset for header, _ in batch.split(data)] == list(range(100))
            assert 1000 < tables.sets.disk_size <= 2000
        tables.sets.expire()
        assert tables.sets.disk_size
        monkeypatch.setattr("krappy.broker.latest.latest_sets.UNUSED_S", -1.0)
        tables.sets.expire()
        assert tables.sets.disk_size == tables.sets.size == 0
        monkeypatch.setattr("krappy.broker.latest.table_file.RESERVE", 1 << 62)  # a full disk
        assert (await read_file(tables, partition))[0] == data
        assert not tables.sets.disk_size

    run(body, tmp_path)


def test_a_file_that_has_all_serves_without_its_set(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    monkeypatch.setattr("krappy.broker.latest.latest_sets.LEAST", 1)

    async def body(broker: LocalBroker) -> None:
        partition, tables = await topic(broker), tables_of(broker, room=2000)
        for number in range(100):
            await write(partition, (f"k{number}", "1"))
        for number in range(2):
            consumer = Consumer(room=200)
            await consumer.finish(tables, partition)
            assert [row[0] for row in consumer.rows] == list(range(100)), number
            assert tables.sets.size <= 2000
        tables.sets.room = 0
        tables.sets._drop_to(0)
        assert tables.sets.size == 0
        assert tables.sets.disk_size
        made, from_file = await read_file(tables, partition)
        assert from_file
        assert [header.base_offset for header, _ in batch.split(made)] == list(range(100))

    run(body, tmp_path)
