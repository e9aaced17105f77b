"""Snapshots that the broker holds: each is the fold of the log at its offsets, whatever happens meanwhile. And how they
end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.broker.runtime import SHARE
from krappy.broker.tables import snapshots, splits
from krappy.broker.tables.snapshots import LeasedSnapshot
from krappy.broker.tables.table import Chosen
from krappy.entries.entry import unpack_entry
from krappy.errors import InvalidRequest, Overloaded, ShuttingDown, SnapshotGone, UnknownPartition
from krappy.records import batch
from krappy.store import rocks, views
from tests.broker.engine import asks, publish, running, until

ALL = Chosen()
Table = dict[tuple[int, bytes], bytes | None]


async def taken(
    broker: LocalBroker, topic: str, chosen: Chosen = ALL, ttl_ms: int = 60_000, **how: Any
) -> LeasedSnapshot:
    partitions = broker.topic(topic).all_led()
    await broker.wait_for_views(partitions)
    return broker.open_snapshot(list(partitions), *chosen, ttl_ms, tombstones=how.get("tombstones", False))


def read(snapshot: LeasedSnapshot, ranges: list[splits.Range], max_bytes: int = 300) -> list[tuple[int, bytes, Any]]:
    """Every row of every range, a little at a time."""
    found = []
    for partition, start, end in ranges:
        following: bytes | None = start
        while True:
            rows = snapshot.rows(partition, following, end, max_bytes, tombstones=snapshot.tombstones)
            found += [
                (partition, key, unpack_entry(entry)[2]) for key, entry in zip(rows.keys, rows.entries, strict=True)
            ]
            following = rows.following
            if following is None:
                break
    return found


def as_table(rows: list[tuple[int, bytes, Any]]) -> Table:
    assert len({row[:2] for row in rows}) == len(rows), "a key came twice"
    return {(partition, key): value for partition, key, value in rows}


class Folded:
    """A topic of two partitions, and the fold of its log."""

    def __init__(self, partitions: list[Partition]) -> None:
        self.partitions = partitions
        self.table: Table = {}
        self.count = 0

    async def write(self, index: int, keys: list[bytes], dead: bool) -> None:
        values = [None if dead else b"%d" % (self.count + at) for at in range(len(keys))]
        self.count += len(keys)
        await self.partitions[index].publish(batch.encode(keys, values, timestamps=5)).wait()
        self.table.update({(index, key): value for key, value in zip(keys, values, strict=True)})

    def chosen(self, chosen: Chosen, tombstones: bool) -> Table:
        return {
            (index, key): value
            for (index, key), value in self.table.items()
            if chosen.holds(key) and (tombstones or value is not None)
        }


KEY = st.binary(min_size=1, max_size=2) | st.integers(0, 999).map(lambda number: b"k%03d" % number)
WRITE = st.tuples(st.integers(0, 1), st.lists(KEY, min_size=1, max_size=30), st.booleans())
CHOSEN = st.one_of(
    st.just(Chosen()),
    KEY.map(lambda key: Chosen(prefix=key[:2])),
    st.tuples(KEY, KEY).map(lambda both: Chosen(start=min(both), end=max(both))),
)
TAKE = st.tuples(CHOSEN, st.booleans(), st.integers(1, 9))
STEPS = st.lists(st.one_of(WRITE, TAKE, st.just("compact"), st.just("read")), max_size=25)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_the_ranges_of_a_snapshot_are_the_fold_of_the_log_at_its_offsets(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    async def main() -> None:
        async with running(tmp_path_factory.mktemp("data")) as broker:
            topic, _ = await broker.create_topic("t", 2, {"cleanup.policy": "compact", "delete.retention.ms": 0})
            folded = Folded(topic.all_led())
            await folded.write(0, [b"k%03d" % number for number in range(1000)], False)
            held: list[tuple[LeasedSnapshot, list[splits.Range], Table]] = []

            compacted = False

            async def check() -> None:
                for snapshot, ranges, wanted in held:
                    found = as_table(read(snapshot, ranges))
                    # A tombstone that the cleaner has taken out since may be missing, and nothing else.
                    lost = wanted.items() - found.items()
                    assert not found.items() - wanted.items()
                    assert not {key for key, value in lost if value is not None}
                    assert compacted or not lost
                    await trio.lowlevel.checkpoint()

            for step in [*steps, (Chosen(), False, 5), (0, [b"k500", b"new"], False), "read"]:
                if step == "read":
                    await check()
                elif step == "compact":
                    compacted = True
                    for partition in topic.local.values():
                        await partition.reshape(partition.log.roll)
                        await broker.housekeeper.clean(partition, broker.now_ms() + 10**9)
                elif isinstance(step[0], Chosen):
                    chosen, tombstones, parts = step
                    snapshot = await taken(broker, "t", chosen, tombstones=tombstones)
                    assert dict(snapshot.offsets) == {p.index: p.high_watermark for p in topic.local.values()}
                    held.append((snapshot, await snapshot.ranges(parts), folded.chosen(chosen, tombstones)))
                else:
                    await folded.write(*step)
            await check()

    trio.run(main)


async def many(broker: LocalBroker, count: int) -> None:
    topic, _ = await broker.create_topic("t", 1, {})
    keys = [b"%06d" % number for number in range(count)]
    for at in range(0, count, 5000):
        await publish(topic.led(0), len(keys[at : at + 5000]), keys[at : at + 5000])


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "sampled"])
def test_ranges_are_about_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    if not counted:
        monkeypatch.setattr(splits, "FEW", 0)

    async def main() -> None:
        async with running(tmp_path / "data") as broker:
            await many(broker, 20_000)
            for flushed in (False, True):
                if flushed:
                    await trio.to_thread.run_sync(broker.views.flush)
                snapshot = await taken(broker, "t")
                ranges = await snapshot.ranges(8)
                sizes = [len(read(snapshot, [each], 1 << 20)) for each in ranges]
                assert sum(sizes) == 20_000
                assert len(as_table(read(snapshot, ranges, 1 << 20))) == 20_000
                if counted:
                    assert len(sizes) == 8
                    assert max(sizes) - min(sizes) <= 2 * splits.STEP
                else:
                    assert len(sizes) > 4
                    assert max(sizes) < 10_000
            assert await snapshot.ranges(1) == [(0, None, None)]

    trio.run(main)


def in_broker(
    tmp_path: Path, test: Callable[[LocalBroker], Any], events: list[str] | None = None, **given: Any
) -> None:
    def report(event: str, **facts: Any) -> None:
        if events is not None:
            events.append(event)

    async def main() -> None:
        async with running(tmp_path / "data", report, **given) as broker:
            await many(broker, 1000)
            await test(broker)

    trio.run(main)


def test_a_snapshot_that_is_not_used_ends(tmp_path: Path) -> None:
    events: list[str] = []

    async def test(broker: LocalBroker) -> None:
        short, long = await taken(broker, "t", ttl_ms=1), await taken(broker, "t")
        await until(lambda: len(broker.snapshots) == 1)
        with pytest.raises(SnapshotGone), broker.snapshots.reading(short.id):
            pass
        with pytest.raises(SnapshotGone):
            short.rows(0, None, None, 100, tombstones=False)
        with pytest.raises(SnapshotGone):
            broker.snapshots.keep(short.id, 5)
        # It ends sooner when it is asked for, and later when it is read meanwhile.
        with broker.snapshots.reading(long.id):
            broker.snapshots.keep(long.id, 1)
            another = await taken(broker, "t", ttl_ms=1)
            await until(lambda: another.closed)
            assert long.rows(0, None, None, 100, tombstones=False).keys
        await until(lambda: long.closed)
        assert (len(broker.snapshots), broker.snapshots.opened, broker.snapshots.expired) == (0, 3, 3)

    in_broker(tmp_path, test, events)
    assert events.count("snapshot_expired") == 3


def test_only_so_many_are_held_and_each_gives_its_place_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST", 2)

    async def test(broker: LocalBroker) -> None:
        first, _ = await taken(broker, "t"), await taken(broker, "t")
        with pytest.raises(Overloaded, match="2 snapshots are held"):
            await taken(broker, "t")
        broker.snapshots.close(first.id)
        broker.snapshots.close(first.id)
        await taken(broker, "t")
        with pytest.raises(InvalidRequest):
            broker.open_snapshot([], None, None, None, 1, tombstones=False)
        with pytest.raises(InvalidRequest):
            broker.open_snapshot(broker.topic("t").all_led(), b"a", b"b", None, 1, tombstones=False)

    in_broker(tmp_path, test)


def test_who_holds_many_keeps_nobody_else_from_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST", 4)

    async def test(broker: LocalBroker) -> None:
        asks("eve")
        for _ in range(2):
            await taken(broker, "t")
        with pytest.raises(Overloaded, match="of one user"):
            await taken(broker, "t")
        asks("bob")
        await taken(broker, "t")

    in_broker(tmp_path, test, authorizer="acl")


def test_where_everybody_may_do_everything_one_may_hold_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST", 4)

    async def test(broker: LocalBroker) -> None:
        asks("eve")
        for _ in range(4):
            await taken(broker, "t")
        with pytest.raises(Overloaded, match="4 snapshots are held"):
            await taken(broker, "t")

    in_broker(tmp_path, test)


def test_the_bounds_of_their_keys_have_a_share_of_memory(tmp_path: Path) -> None:
    most = (1 << 20) // SHARE

    async def test(broker: LocalBroker) -> None:
        first = await taken(broker, "t", Chosen(start=b"a" * (most // 2)))
        for bounds in (Chosen(prefix=b"a" * most), Chosen(None, b"a" * (most // 2), b"b")):
            with pytest.raises(Overloaded, match=f"may take {most} bytes"):
                await taken(broker, "t", bounds)
        await taken(broker, "t", Chosen(end=b"b" * (most // 2)))
        await taken(broker, "t")
        broker.snapshots.close(first.id)
        await taken(broker, "t", Chosen(prefix=b"a" * (most // 2)))

    in_broker(tmp_path, test, memory_bytes=1 << 20)


def test_large_keys_are_counted_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_KEYS", 10_000)
    monkeypatch.setattr(splits, "ROOM", 20_000)

    async def test(broker: LocalBroker) -> None:
        partition = broker.topic("t").led(0)
        keys: list[bytes | None] = [b"large%02d" % number + bytes(1000) for number in range(90)]
        await publish(partition, len(keys), keys)
        snapshot = await taken(broker, "t")
        read_at_once = []
        keys_from = rocks.keys_from

        def counting(*args: Any) -> tuple[list[bytes], bytes | None]:
            found = keys_from(*args)
            read_at_once.append(sum(map(len, found[0])))
            return found

        monkeypatch.setattr(rocks, "keys_from", counting)
        for parts in (2, 5, 90):
            ranges = await snapshot.ranges(parts)
            assert [row[1] for row in read(snapshot, ranges, 1 << 20) if row[1] in keys] == keys
        assert max(read_at_once) < 10_000 + 1_100

    in_broker(tmp_path, test)


def test_a_topic_that_is_deleted_or_loses_its_view_takes_its_snapshots_with_it(tmp_path: Path) -> None:
    async def test(broker: LocalBroker) -> None:
        snapshot = await taken(broker, "t")
        with pytest.raises(UnknownPartition):
            snapshot.rows(1, None, None, 100, tombstones=False)
        await broker.alter_topic("t", {"view.enable": "false"}, None)
        with pytest.raises(SnapshotGone):
            snapshot.rows(0, None, None, 100, tombstones=False)
        await broker.alter_topic("t", {"view.enable": "true"}, None)
        snapshot = await taken(broker, "t")
        await broker.delete_topic("t")
        with pytest.raises(SnapshotGone):
            snapshot.rows(0, None, None, 100, tombstones=False)

    in_broker(tmp_path, test)


def test_a_broker_that_stops_lets_them_go(tmp_path: Path) -> None:
    held: list[LeasedSnapshot] = []

    async def test(broker: LocalBroker) -> None:
        held.append(await taken(broker, "t"))
        broker.begin_stop()
        with pytest.raises(ShuttingDown):
            await taken(broker, "t")

    in_broker(tmp_path, test)  # RocksDB would not let go of its folder while there is a snapshot
    with pytest.raises(SnapshotGone):
        held[0].rows(0, None, None, 100, tombstones=False)

    async def again(broker: LocalBroker) -> None:
        with pytest.raises(SnapshotGone), broker.snapshots.reading(held[0].id):
            pass

    async def main() -> None:
        async with running(tmp_path / "data") as broker:
            await again(broker)

    trio.run(main)


def test_events_that_expired_before_are_not_in_it_and_those_after_are(tmp_path: Path) -> None:
    async def test(broker: LocalBroker) -> None:
        before = await taken(broker, "t")
        await broker.topic("t").led(0).delete_records(600)
        after = await taken(broker, "t")
        assert len(read(before, [(0, None, None)])) == 1000
        assert [row[1] for row in read(after, await after.ranges(3))] == [
            b"%06d" % number for number in range(600, 1000)
        ]

    in_broker(tmp_path, test)
