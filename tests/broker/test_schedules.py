"""Two or three things that a broker does at once, in every order in which they may wait for each other and for the
disk."""

from __future__ import annotations

from pathlib import Path

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.records import batch
from krappy.types import ABSENT, TopicPartition
from tests.broker.schedules import Scenario, explore
from tests.broker.transactional import Producer
from tests.store.read_committed import read_committed

NOW = 1_700_000_000_000
OLD = NOW - 10_000


async def made(broker: LocalBroker, name: str, **config: object) -> Partition:
    broker.now_ms = lambda: NOW  # type: ignore[method-assign]
    given = {key.replace("_", "."): value for key, value in config.items()}
    topic, _ = await broker.create_topic(name, 1, given)
    return topic.led(0)


async def compacted(broker: LocalBroker, name: str) -> Partition:
    """Some closed segments, in which newer events have taken the place of half of the events."""
    given = {"cleanup_policy": "compact", "segment_bytes": 300, "min_cleanable_dirty_ratio": 0}
    partition = await made(broker, name, **given)
    for number in range(6):
        await publish(partition, NOW, b"a", b"b%d" % number, b"c")
    assert await partition.view_wait(None, 60)
    return partition


async def publish(partition: Partition, at: int, *keys: bytes) -> int:
    """Publishes events of these keys; returns the offset behind them."""
    data = batch.encode(keys, [b"v"] * len(keys), timestamps=at)
    return (await partition.publish(data).wait()).offset + len(keys)


def test_retention_takes_no_event_that_has_not_expired(tmp_path: Path) -> None:
    """However late an event comes, while all that was there before expires."""

    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        partition = await made(broker, name, retention_ms=1000)
        await publish(partition, OLD, b"old")
        fresh: list[int] = []

        async def write() -> None:
            for number in range(2):
                fresh.append(await publish(partition, NOW, b"new%d" % number) - 1)

        def check() -> None:
            assert all(offset >= partition.start_offset for offset in fresh), "a fresh event is gone"

        return Scenario({"retain": lambda: broker.housekeeper.retain(partition), "write": write}, check)

    assert explore(tmp_path, scenario) > 5


def test_a_deletion_of_records_takes_none_that_came_later(tmp_path: Path) -> None:
    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        partition = await made(broker, name)
        await publish(partition, NOW, b"old")
        ends: list[int] = []

        async def delete() -> None:
            ends.append(partition.high_watermark)
            await partition.delete_records(-1)

        async def write() -> None:
            await publish(partition, NOW, b"new")

        def check() -> None:
            assert partition.start_offset <= max(ends, default=0)

        return Scenario({"delete": delete, "write": write}, check)

    assert explore(tmp_path, scenario) > 5


def test_a_condition_is_decided_beside_a_deletion_of_records(tmp_path: Path) -> None:
    """The condition looks at events behind an open transaction, which may be deleted meanwhile."""

    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        partition = await made(broker, name)
        producer, at = await Producer(broker, name).init(), TopicPartition(name, 0)
        await producer.write((b"open", b"v"), at=at)
        await publish(partition, NOW, b"other")

        async def write() -> None:
            await partition.publish(batch.encode([b"new"], [b"v"], timestamps=NOW), [(0, ABSENT)]).wait()

        async def delete() -> None:
            await partition.delete_records(-1)

        return Scenario({"delete": delete, "write": write})

    assert explore(tmp_path, scenario) > 5


def test_nothing_expires_by_a_setting_that_is_not_in_force_any_more(tmp_path: Path) -> None:
    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        partition = await made(broker, name, retention_ms=1000, cleanup_policy="compact,delete")
        await publish(partition, OLD, b"old")
        starts: list[int] = []

        async def alter() -> None:
            await broker.alter_topic(name, {"retention.ms": -1}, None)
            starts.append(partition.start_offset)

        def check() -> None:
            assert not starts or partition.start_offset == starts[0]

        return Scenario({"alter": alter, "retain": lambda: broker.housekeeper.retain(partition)}, check)

    assert explore(tmp_path, scenario) > 5


def test_nothing_is_compacted_once_its_topic_is_not_to_be(tmp_path: Path) -> None:
    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        partition = await compacted(broker, name)
        sizes: list[int] = []

        async def alter() -> None:
            await broker.alter_topic(name, {"cleanup.policy": "delete", "retention.ms": -1}, None)
            sizes.append(partition.size)

        def check() -> None:
            assert not sizes or partition.size == sizes[0]

        return Scenario({"alter": alter, "clean": lambda: broker.housekeeper.clean(partition, NOW)}, check)

    assert explore(tmp_path, scenario, limit=60) > 5


def test_one_thread_is_enough(tmp_path: Path) -> None:
    """With background.threads=1, nobody who holds the thread waits for somebody who needs it."""

    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        broker.disk_limiter.total_tokens = 1
        partition = await compacted(broker, name)
        other = await made(broker, f"{name}-other", retention_ms=1000)
        await publish(other, OLD, b"old")

        async def write() -> None:
            await publish(partition, NOW, b"new")

        return Scenario(
            {
                "clean": lambda: broker.housekeeper.clean(partition, NOW),
                "retain": lambda: broker.housekeeper.retain(other),
                "write": write,
            }
        )

    assert explore(tmp_path, scenario, limit=30, drawn=True) == 30


def test_a_consumer_reads_what_is_committed_beside_a_cleaning(tmp_path: Path) -> None:
    """The cleaning takes an abort marker out, and then goes on with other segments for long."""

    async def scenario(broker: LocalBroker, name: str) -> Scenario:
        given = {"cleanup_policy": "compact", "segment_bytes": 500, "delete_retention_ms": 0}
        partition = await made(broker, name, **given)
        producer, at = await Producer(broker, name).init(), TopicPartition(name, 0)
        await producer.write((b"aborted", b"v"), at=at)
        await publish(partition, NOW, *[b"first%d" % number for number in range(20)])
        await producer.end(commit=False)
        await producer.write((b"account", b"v"), at=at)
        await producer.end(commit=True)
        for number in range(6):
            await publish(partition, NOW, *[b"k%d" % each for each in range(number, 20)])
        for _ in range(2):
            await broker.housekeeper.clean(partition, NOW)
        assert partition.aborted(0, 1000), "the third one takes the marker"

        def check() -> None:
            found = read_committed(partition.log, partition.stability)
            assert [row.key for row in found if row.key == b"account"], "a committed event is missing"
            assert not [row.key for row in found if row.key == b"aborted"]

        async def write() -> None:
            for number in range(2):
                await publish(partition, NOW, b"later%d" % number)

        return Scenario({"clean": lambda: broker.housekeeper.clean(partition, NOW), "write": write}, check)

    assert explore(tmp_path, scenario, limit=20) > 5
