"""Keys that stand in several partitions, found in one pass."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.partition import doubles as module
from krappy.broker.partition.doubles import doubles
from krappy.broker.partition.follower import Follower
from krappy.broker.tables import newest_rows
from krappy.broker.tables.newest_rows import NewestRows
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.entries.entry import pack_entry
from krappy.records import batch
from krappy.store.views import Views
from tests.broker.engine import running

SELF, OTHER = 1, 2


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_finds_all_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Views of all sizes, empty ones too; keys of all lengths; few or many held at a time."""
    chance = random.Random(seed)
    monkeypatch.setattr(module, "KEYS", chance.choice([1, 10, 100, 8_000]))
    monkeypatch.setattr(module, "BYTES", chance.choice([1, 1_000, 1 << 20]))
    monkeypatch.setattr(module, "TURN", chance.choice([1, 50, 4_000]))
    keys = [chance.randbytes(chance.choice([0, 1, 2, 9, 40])) for _ in range(400)]
    views = Views(tmp_path / "views", cache_bytes=4 << 20, memtable_bytes=1 << 20)
    try:
        held: list[list[bytes]] = []
        for number in range(1, 2 + chance.randrange(6)):
            some = set(chance.sample(keys, chance.choice([0, 1, 30, 300])))
            views.apply(number, {key: pack_entry(0, 5, chance.choice([b"v", None])) for key in some}, 1)
            held.append(list(some))
        times = Counter(key for some in held for key in some)
        expected = frozenset(key for key, count in times.items() if count > 1)
        assert trio.run(doubles, views, range(1, len(held) + 1)) == expected
        monkeypatch.setattr(module, "MOST", len(expected) - 1)
        if expected:
            assert trio.run(doubles, views, range(1, len(held) + 1)) is None
    finally:
        views.close()


@trio_test
async def test_one_pass_serves_all_who_began_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0

    async def counted(views: Views, numbers: list[int]) -> frozenset[bytes] | None:
        nonlocal passes
        passes += 1
        await trio.lowlevel.checkpoint()
        return await doubles(views, numbers)

    monkeypatch.setattr(newest_rows, "doubles", counted)
    async with running(tmp_path) as broker:
        topic = (await broker.create_topic("t", 3, {}))[0]

        async def write(partition: int, *keys: bytes) -> None:
            data = batch.encode(list(keys), [b"v"] * len(keys), timestamps=1)
            await topic.led(partition).publish(data).wait()
            assert await topic.led(partition).view_wait(None, 60)

        async def find() -> None:
            snapshot = broker.views.snapshot()
            newest = NewestRows(snapshot, topic.led(0).strays)
            await newest.find_doubles(broker.views)
            found.append(newest)

        found: list[NewestRows] = []
        await write(0, b"a", b"b")
        await write(1, b"c")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(find)
        assert [each.single for each in found] == [True] * 3
        assert passes == 1
        await write(1, b"b")
        await find()
        assert not found[-1].single, "what was written since counts"
        assert passes == 2


@trio_test
async def test_keys_that_came_in_place_of_lost_ones_are_found(tmp_path: Path) -> None:
    """An unclean election has taken an event from a partition, and another event has come in its place, so that the
    partition is as long as before."""
    async with running(tmp_path) as broker:
        topic = (await broker.create_topic("t", 2, {}))[0]
        cut = topic.led(1)

        async def write(partition: int, key: bytes) -> None:
            await topic.led(partition).publish(batch.encode([key], [b"v"], timestamps=1)).wait()
            assert await topic.led(partition).view_wait(None, 60)

        async def single() -> bool:
            newest = NewestRows(broker.views.snapshot(), cut.strays)
            await newest.find_doubles(broker.views)
            return newest.single

        for partition, key in ((0, b"a"), (1, b"b"), (1, b"lost")):
            await write(partition, key)
        assert await single()
        epoch = cut.epoch
        await cut.take(PartitionState(OTHER, epoch + 1), 2, Role.FOLLOWER, SELF)
        follower = Follower(cut, topic.id, lambda start: cut.log, SELF)
        follower.state = PartitionState(OTHER, epoch + 1, unclean=epoch + 1)
        await follower.diverged(epoch + 1, (epoch, 1), 1)
        await cut.take(PartitionState(SELF, epoch + 2, isr=(SELF,), min_isr=1), 3, Role.LEADER, SELF)
        await write(1, b"a")
        assert not await single()
