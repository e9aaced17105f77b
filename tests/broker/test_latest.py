"""`TOPIC@latest`, straight on a broker: whoever reads it ends with the table, wherever and whenever it began."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krappy import batch
from krappy.broker import latest_sets, table_file
from krappy.broker.ahead import Ahead
from krappy.broker.broker import Broker
from krappy.broker.housekeeping import Housekeeper
from krappy.broker.latest import LatestTables, Some
from krappy.broker.partition import Partition
from krappy.core import latest, live_offsets
from krappy.core.latest import Reading
from krappy.entry import unpack_entry
from krappy.errors import OffsetOutOfRange, StorageError, UnknownTopic, ViewDisabled
from krappy.types import FilePart
from tests.broker.engine import running

NEVER = 2**40  # ms
Row = tuple[int, bytes, bytes | None]  # offset, key, value


class Consumer:
    """An application that keeps a dict of what it has read, over connections that come and go."""

    def __init__(self, room: int = 1) -> None:
        self.position = 0
        self.began = 0  # it knows nothing of what was before
        self.held: dict[bytes, tuple[int, bytes]] = {}
        self.rows: list[Row] = []
        self.reading = Reading()
        self.room = room

    def reconnect(self) -> None:
        self.reading = Reading()

    async def fetch(self, tables: LatestTables, partition: Partition) -> bool:
        """One answer. False at the end of the log."""
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


async def table(broker: Broker, partition: Partition) -> dict[bytes, tuple[int, bytes]]:
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


async def topic(broker: Broker, **config: Any) -> Partition:
    given = {name.replace("_", "."): str(value) for name, value in config.items()}
    return (await broker.create_topic("t", 1, given))[0].partition(0)


def tables_of(broker: Broker, room: int = 1 << 20, disk_room: int = 1 << 30) -> LatestTables:
    return LatestTables(broker, room, broker.config.data, disk_room)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 8 offsets, files in parts of 40 bytes, and a reader that comes back 3 behind is far behind.

    New readers are given the table as of now, however slow the machine is.
    """
    monkeypatch.setattr(latest_sets, "SLACK", 0.0)
    monkeypatch.setattr(table_file, "MARK", 40)
    monkeypatch.setattr(live_offsets, "BITS", 3)
    monkeypatch.setattr(live_offsets, "BLOCK", 8)
    monkeypatch.setattr(latest, "RAW_LAG", 3)


def run(body: Any, folder: Path, **given: Any) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with running(folder, **given) as broker:
                await body(broker)

    trio.run(main)


def test_one_record_per_live_key_then_every_event(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
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
    async def body(broker: Broker) -> None:
        partition = await topic(broker)
        await write(partition, ("a", "1"), ("a", None))
        reading = Reading()
        assert reading.at(0, 0, 2)
        some = await tables_of(broker).read(partition, reading, 0, 1 << 20)
        [(header, _)] = batch.split(content(some))
        assert (header.count, header.base_offset, header.next_offset) == (0, 0, 2)
        assert some.following == 2
        assert not reading.at(2, 0, 2)

    run(body, tmp_path)


def test_a_deletion_is_given_to_whoever_may_know_what_it_deletes(tmp_path: Path, small: None) -> None:
    async def body(broker: Broker) -> None:
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
    async def body(broker: Broker) -> None:
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

    async def body(broker: Broker) -> None:
        partition = await topic(broker)
        count = 300
        keys: list[bytes | None] = [b"key-%d" % (number % 250) for number in range(count)]
        values = [bytes([number % 251]) * (number * 7 % 300) for number in range(count)]
        headers = [(("name", b"x" * number), ("none", None)) if number % 3 else () for number in range(count)]
        times = [1_000 + number * number for number in range(count)]
        data = batch.encode(keys, list(values), timestamps=times, headers=headers, codec=codec)
        await partition.publish(data).wait()
        reading = Reading()
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
    monkeypatch.setattr("krappy.broker.latest_sets.LEAST", 1)

    async def body(broker: Broker) -> None:
        partition = await topic(broker)
        for number in range(100):
            await write(partition, (f"k{number}", "1"))
        tables = tables_of(broker, room=2000)  # too little for all of its 13 blocks
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
        assert tables.sets.size <= 2000
        assert 2 <= making <= 60, "each window is made once, about, whoever reads it"
        tables.forget(partition.number)
        assert not tables.sets.size

    run(body, tmp_path)


async def read_file(tables: LatestTables, partition: Partition, room: int = 200) -> tuple[bytes, int]:
    """All that a new reader is given of the first part, and how many of its answers came from a file."""
    reading, at, data, from_file = Reading(), 0, b"", 0
    reading.told_earliest(partition.start_offset)
    while at < partition.last_stable_offset and reading.at(at, partition.start_offset, partition.last_stable_offset):
        some = await tables.read(partition, reading, at, room)
        data += content(some)
        from_file += isinstance(some.records, FilePart)
        at = some.following
    return data, from_file


def test_what_was_made_for_one_is_sent_to_the_next_from_a_file(tmp_path: Path, small: None) -> None:
    async def body(broker: Broker) -> None:
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
        assert {path.name for path in tmp_path.iterdir()} == {"lock", "meta", "staging", "topics", "views"}, (
            "it has no name"
        )
        await write(partition, ("k3", "2"))
        changed, from_file = await read_file(tables, partition)
        assert [header.count for header, _ in batch.split(changed)][-1] == 1
        assert changed != made

    run(body, tmp_path)


def test_many_who_begin_at_once_are_given_what_one_of_them_made(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    async def body(broker: Broker) -> None:
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
    async def body(broker: Broker) -> None:
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
    async def body(broker: Broker) -> None:
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
    async def body(broker: Broker) -> None:
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
    async def body(broker: Broker) -> None:
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
            await Housekeeper(broker).clean(partition, broker.now_ms())
        consumer = Consumer(room=200)
        await consumer.finish(tables, partition)
        assert b"k3" not in consumer.held
        assert (tables.sets._held[partition.number][0].moment > moment) == compacted

    run(body, tmp_path)


def test_files_are_bounded_and_go_when_nobody_reads(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    async def body(broker: Broker) -> None:
        partition, tables = await topic(broker), tables_of(broker, disk_room=2000)
        for number in range(100):
            await write(partition, (f"k{number}", "1"))
        for _ in range(2):
            data, _ = await read_file(tables, partition)
            assert [header.base_offset for header, _ in batch.split(data)] == list(range(100))
            assert 1000 < tables.sets.disk_size <= 2000
        tables.sets.expire()
        assert tables.sets.disk_size
        monkeypatch.setattr("krappy.broker.latest_sets.UNUSED_S", -1.0)
        tables.sets.expire()
        assert tables.sets.disk_size == tables.sets.size == 0
        monkeypatch.setattr("krappy.broker.table_file.RESERVE", 1 << 62)  # a full disk
        assert (await read_file(tables, partition))[0] == data
        assert not tables.sets.disk_size

    run(body, tmp_path)


def test_a_file_that_has_all_serves_without_its_set(tmp_path: Path, small: None, monkeypatch: Any) -> None:
    monkeypatch.setattr("krappy.broker.latest_sets.LEAST", 1)

    async def body(broker: Broker) -> None:
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


def test_a_topic_without_a_view_has_no_table(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        partition = await topic(broker, view_enable="false")
        await write(partition, ("a", "1"))
        reading = Reading()
        assert reading.at(0, 0, 1)
        with pytest.raises(ViewDisabled):
            await tables_of(broker).read(partition, reading, 0, 1 << 20)

    run(body, tmp_path)


@pytest.mark.parametrize("ending", ["off", "off and on", "deleted"])
def test_a_view_that_goes_away_under_a_reader_is_no_empty_table(tmp_path: Path, monkeypatch: Any, ending: str) -> None:
    monkeypatch.setattr("krappy.broker.latest_sets.SLICE", 1)

    async def body(broker: Broker) -> None:
        partition, tables = await topic(broker), tables_of(broker)
        await write(partition, *((f"k{number}", "1") for number in range(20_000)))
        reading = Reading()
        assert reading.at(0, 0, 20_000)
        refused = False

        async def read() -> None:
            nonlocal refused
            with pytest.raises((ViewDisabled, StorageError, UnknownTopic)):
                await tables.read(partition, reading, 0, 1 << 20)
            refused = True

        async with trio.open_nursery() as nursery:
            await partition.view_wait(None, 30)
            nursery.start_soon(read)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert tables.sets._making, "it is looking through the view"
            if ending == "deleted":
                await broker.delete_topic("t")
            else:
                await broker.alter_topic("t", {"view.enable": "false"}, None)
                if ending == "off and on":
                    await broker.alter_topic("t", {"view.enable": "true"}, None)
        assert refused
        assert not tables.sets.size

    run(body, tmp_path)


KEYS = st.sampled_from("abcdefgh")
BATCH = st.lists(st.tuples(KEYS, st.none() | st.sampled_from("xyz")), min_size=1, max_size=6)
WHO = st.integers(0, 3)
STEP = st.one_of(
    st.tuples(st.just("write"), BATCH, st.sampled_from([0, 0, 4])),
    st.tuples(st.just("fetch"), WHO, st.integers(1, 4)),
    st.tuples(st.just("fetch"), WHO, st.integers(1, 4)),
    st.tuples(st.just("reconnect"), WHO),
    st.tuples(st.just("again"), WHO),
    st.tuples(st.just("skip"), WHO, st.integers(0, 40)),
    st.tuples(st.just("clean")),
    st.tuples(st.just("ahead")),
    st.tuples(st.just("expire"), st.integers(0, 100)),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=40), compacted=st.booleans(), narrow=st.booleans(), ahead=st.booleans())
def test_every_reader_ends_with_the_table(
    small: None, steps: list[Any], compacted: bool, narrow: bool, ahead: bool
) -> None:
    config = {"segment.bytes": "200", "retention.ms": "-1", "delete.retention.ms": str(NEVER)}
    config["latest.ahead.enable"] = str(ahead)
    if compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    consumers = [Consumer(room) for room in (1, 60, 300, 1 << 20)]
    left = list(steps)

    async def life(folder: Path) -> None:
        async with running(folder) as broker:
            if "t" not in broker.topics:
                await broker.create_topic("t", 1, config)
            partition = broker.topic("t").partition(0)
            tables = tables_of(broker, room=200 if narrow else 1 << 20)
            maker = Ahead(broker, tables)
            while left:
                step = left.pop(0)
                match step[0]:
                    case "write":
                        await write(partition, *step[1], codec=step[2])
                    case "fetch":
                        for _ in range(step[2]):
                            await consumers[step[1]].fetch(tables, partition)
                    case "reconnect":
                        consumers[step[1]].reconnect()
                    case "again":  # from the start, with what it knows
                        consumers[step[1]].position = partition.start_offset
                        consumers[step[1]].began = min(consumers[step[1]].began, partition.start_offset)
                        consumers[step[1]].reading.told_earliest(partition.start_offset)
                    case "skip":  # and another application that starts from nothing, in the middle
                        at = min(partition.start_offset + step[2], partition.last_stable_offset)
                        consumers[step[1]] = Consumer(consumers[step[1]].room)
                        consumers[step[1]].position = consumers[step[1]].began = at
                    case "clean" if compacted:
                        await Housekeeper(broker).clean(partition, broker.now_ms())
                    case "ahead":
                        await maker.look()
                    case "expire" if not compacted:
                        await partition.view_wait(None, 30)
                        before = min(step[1], partition.last_stable_offset)
                        await partition.delete_records(before)
                    case "restart":
                        for consumer in consumers:
                            consumer.reconnect()
                        return
            want = await table(broker, partition)
            for consumer in consumers:
                await consumer.finish(tables, partition)
                held = {key: row for key, row in consumer.held.items() if row[0] >= partition.start_offset}
                assert held == {key: row for key, row in want.items() if row[0] >= consumer.began}
            anew = Consumer(100)
            anew.position = partition.start_offset
            anew.reading.told_earliest(partition.start_offset)
            await anew.finish(tables, partition)
            assert anew.held == want
            offsets = [row[0] for row in anew.rows]
            assert offsets == sorted(set(offsets))
            if not ahead:
                assert set(offsets) == {row[0] for row in want.values()}, "nothing else"

    async def lives() -> None:
        with tempfile.TemporaryDirectory() as folder, trio.fail_after(60):
            await life(Path(folder))
            while left:
                await life(Path(folder))
            await life(Path(folder))

    trio.run(lives)
