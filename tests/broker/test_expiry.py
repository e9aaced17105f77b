"""What has expired leaves the disk, not only the table."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

import krappy
from krappy.broker.broker import LocalBroker
from krappy.broker.partition import viewed
from krappy.broker.partition.partition import Partition
from krappy.broker.tables.snapshots import LeasedSnapshot
from krappy.core import retention
from krappy.records import batch
from tests.broker.engine import publish, running

COUNT = 50
DAY_MS = 86_400_000
HOW_TOS = Path(krappy.__file__).parent / "docs" / "howto"
KEYS = [b"%02d" % number for number in range(COUNT)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LEAST_SWEPT", 10)
    monkeypatch.setattr(viewed, "STEP", 7)
    monkeypatch.setattr(viewed, "PAUSE_S", 0.0)
    monkeypatch.setattr(viewed, "LOOK_S", 0.001)


async def made(broker: LocalBroker, **config: object) -> Partition:
    given = {"retention.ms": -1, **{name.replace("_", "."): value for name, value in config.items()}}
    partition = (await broker.create_topic("t", 1, given))[0].led(0)
    await publish(partition, COUNT, KEYS)
    assert await partition.view_wait(None, 60)
    return partition


def kept(partition: Partition) -> list[bytes]:
    """The keys that the database has."""
    found = partition.views.get_many(partition.number, KEYS)
    return [key for key, entry in zip(KEYS, found, strict=True) if entry is not None]


@trio_test
async def test_what_has_expired_leaves_the_view_when_it_is_much(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition, keeper = await made(broker), broker.housekeeper
        await partition.delete_records(10)
        await keeper.sweep(partition)
        assert kept(partition) == KEYS  # few: not worth it
        await partition.delete_records(30)
        await publish(partition, 1, KEYS[:1])
        assert await partition.view_wait(None, 60)
        await keeper.sweep(partition)
        assert kept(partition) == [KEYS[0], *KEYS[30:]]
        await partition.delete_records(45)
        await keeper.sweep(partition)
        assert len(kept(partition)) == 21  # fewer have expired since the sweep than it left
        await publish(partition, 1, KEYS[:1])
        await partition.delete_records(-1)
        await keeper.sweep(partition)
        assert kept(partition) == []
    async with running(tmp_path) as broker:
        assert kept(broker.topic("t").led(0)) == []


@trio_test
async def test_a_table_that_outlives_its_events_is_left_as_it_is(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker, cleanup_policy="compact,delete")
        await partition.delete_records(-1)
        await broker.housekeeper.sweep(partition)
        assert kept(partition) == KEYS


@trio_test
async def test_the_sessions_of_the_how_to_expire_after_a_week(tmp_path: Path) -> None:
    [config] = re.findall(r'create_topic\("sessions", config=({.*?})', (HOW_TOS / "compare-and-set.md").read_text())
    async with running(tmp_path, retention_check_ms=10**9, cleaner_backoff_ms=10**9) as broker:
        partition = (await broker.create_topic("sessions", 1, ast.literal_eval(config)))[0].led(0)
        for days in (9, 6):
            await partition.publish(batch.encode([b"s"], [b""], timestamps=broker.now_ms() - days * DAY_MS)).wait()
            assert await partition.view_wait(None, 60)
            await broker.housekeeper.retain(partition)
            assert (partition.look_up(b"s") is not None) == (days < 7)


@asynccontextmanager
async def swept_beside(broker: LocalBroker, partition: Partition) -> AsyncIterator[LeasedSnapshot]:
    """A sweep that waits for a snapshot, which is to be closed before the end."""
    snapshot = broker.open_snapshot([partition], None, None, None, 60_000, tombstones=False)
    await partition.delete_records(40)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.housekeeper.sweep, partition)
        await wait_all_tasks_blocked()
        yield snapshot


@trio_test
async def test_a_snapshot_shows_what_has_expired_since(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        async with swept_beside(broker, partition) as snapshot:
            later = broker.open_snapshot([partition], None, None, None, 60_000, tombstones=False)
            assert snapshot.rows(0, None, None, 1 << 20, tombstones=False).keys == KEYS
            broker.snapshots.close(snapshot.id)
        assert kept(partition) == KEYS[40:]  # whoever began later does not see the others anyway
        assert later.rows(0, None, None, 1 << 20, tombstones=False).keys == KEYS[40:]


@trio_test
async def test_a_topic_may_go_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        async with swept_beside(broker, partition) as snapshot:
            await broker.delete_topic("t")
            broker.snapshots.close(snapshot.id)
        assert partition.swept.below == 0
