"""Three replicas lead in turns, are away, and compact by themselves, in random order. No deleted key comes back.

Whatever happened, once all replicas are in sync, their tables have what was written. A replica may miss tombstones that
were removed while it was away. Still, older values must not come back, neither on this replica nor on those that follow
it later.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from krappy.app import Broker
from krappy.broker.partition.follower import Follower
from krappy.broker.partition.partition import Partition
from krappy.broker.runtime import Runtime
from krappy.broker.topics import catalog
from krappy.cluster.fetcher import Fetcher, FetchSettings
from krappy.cluster.inter_broker import InterBroker
from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, Registration
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.core.cluster.tree import Create
from krappy.entries.entry import is_tombstone
from krappy.errors import StorageError
from krappy.records import batch
from krappy.settings.listeners import parse_address
from krappy.store.catalog import new_id
from krappy.store.log import Log
from tests.cluster.replication import LISTENER
from tests.long import some

IDS = (1, 2, 3)
KEYS = [b"k%d" % number for number in range(6)]
STEPS = 80
LAG_MS = 150
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "segment.bytes": "1000",
}
# A fetch brings only one or two batches, so that a replica needs many fetches to catch up.
SLOW = FetchSettings(max_bytes=150, backoff_ms=50)


class Side:
    """One broker with its replica. `fetcher`: fetches from the leader."""

    partition: Partition
    follower: Follower

    def __init__(self, id: int, broker: Broker, image: Image) -> None:
        self.id, self.broker = id, broker
        self.fetcher = Fetcher(id, InterBroker(LISTENER), lambda: image, lambda: 0, settings=SLOW)

    async def begin(self) -> None:
        engine = self.broker.engine
        for id in IDS:
            if id != self.id:
                await engine.store.multi([Create(paths.epoch(id), b"{}")])
        await engine.create_topic("t", 1, CONFIG)
        topic = engine.topics["t"]
        topic.see(replace(topic.image, partitions=(topic.image.partitions[0]._replace(replicas=IDS),)))
        self.partition = topic.local[0]
        self.follower = Follower(self.partition, topic.id, self._make_log, self.id)

    def _make_log(self, start: int) -> Log:
        log = self.partition.log
        log.destroy()
        return Log.open(log.folder, log.config, start_offset_hint=start)

    async def compact(self) -> None:
        """Compacts twice: the first time finds tombstones, and the second time removes them."""
        engine, partition = self.broker.engine, self.partition
        if partition.role is Role.LEADER:
            await partition.reshape(partition.log.roll)
        for _ in range(2):
            await trio.sleep(0.002)
            with suppress(StorageError):  # the view may just be folded anew
                await engine.housekeeper.clean(partition, engine.now_ms())

    async def table(self) -> dict[bytes, bytes]:
        """The entries of its view, by key, without those of deleted keys."""
        partition = self.partition
        assert await partition.applier.caught_up(partition.high_watermark, 20)
        found = ((key, partition.look_up(key)) for key in KEYS)
        return {key: entry for key, entry in found if entry is not None and not is_tombstone(entry)}


class Chaos:
    """`isr`: the ids of the replicas in sync. `there`: the ids of the replicas that fetch, and may still lag."""

    def __init__(self, seed: int, sides: Mapping[int, Side]) -> None:
        self.chance = random.Random(seed)
        self.sides = sides
        self.leader = IDS[0]
        self.epoch, self.version = 10, 10
        self.isr, self.there = set(IDS), set(IDS)
        self.values = 0
        self.model: dict[bytes, bool] = {}  # by key: whether it has a value

    @property
    def led(self) -> Partition:
        return self.sides[self.leader].partition

    @property
    def others(self) -> list[Side]:
        return [side for id, side in self.sides.items() if id != self.leader]

    def _state(self) -> PartitionState:
        self.version += 1
        return PartitionState(self.leader, self.epoch, 0, tuple(sorted(self.isr)), min_isr=1)

    async def lead(self, leader: int) -> None:
        """Lets this broker lead, in a new epoch."""
        self.leader = leader
        self.epoch += 1
        self.there |= {leader}
        state = self._state()
        for side in (*self.others, self.sides[leader]):  # the old leader stops first
            side.fetcher.set([])
            role = Role.LEADER if side.id == leader else Role.FOLLOWER
            await side.partition.take(state, self.version, role, side.id)
        for side in self.others:
            side.follower.leader = leader
            if side.id in self.there:
                side.fetcher.set([side.follower])

    def know(self) -> None:
        """Tells the leader the present ISR."""
        state = self._state()
        self.led.know(state, self.version, self.epoch)

    async def same(self, side: Side) -> None:
        led, other = self.led, side.partition
        with trio.fail_after(20):
            while not other.high_watermark == led.high_watermark == led.end_offset == other.end_offset:
                await trio.sleep(0.002)

    async def write(self) -> None:
        for _ in range(self.chance.randint(1, 15)):
            key = self.chance.choice(KEYS)
            self.values += 1
            value = None if self.chance.random() < 0.4 else b"%d" % self.values * 20
            with trio.fail_after(20):
                await self.led.publish(batch.encode([key], [value], timestamps=self.values)).wait()
            self.model[key] = value is not None

    async def leave(self, side: Side) -> None:
        side.fetcher.set([])
        self.there.discard(side.id)
        if side.id in self.isr:
            self.isr.discard(side.id)
            self.know()
        if self.chance.random() < 0.3:
            await trio.sleep(1.2 * LAG_MS / 1000)  # so long that no tombstone is kept for it any more

    async def come(self, side: Side) -> None:
        """Lets a replica fetch: until it is in sync, or for a while until it is away again, or without waiting for
        it."""
        self.there.add(side.id)
        side.fetcher.set([side.follower])
        deed = self.chance.random()
        if deed < 0.4:
            await self.same(side)
            self.isr.add(side.id)
            self.know()
        else:
            await trio.sleep(self.chance.choice([0, 0.003, 0.006, 0.01, 0.02]))
            if deed > 0.75:
                await self.sides[self.leader].compact()
            if deed < 0.6:
                await self.leave(side)

    async def run(self) -> None:
        await self.lead(self.leader)
        for _ in range(STEPS):
            deed, side = self.chance.random(), self.chance.choice(self.others)
            if deed < 0.35:
                await self.write()
            elif deed < 0.48:
                await self.sides[self.leader].compact()
            elif deed < 0.53:
                await side.compact()
            elif deed < 0.68:
                if side.id in self.there:
                    await self.leave(side)
            elif deed < 0.88:
                if side.id not in self.isr:
                    await self.come(side)
            else:
                leader = self.chance.choice(sorted(self.isr))
                if leader != self.leader:
                    await self.same(self.sides[leader])
                await self.lead(leader)
        await self.heal()
        for id in IDS:
            await self.lead(id)
            await self.write()
            await self.heal()

    async def heal(self) -> None:
        for side in self.others:
            self.there.add(side.id)
            side.fetcher.set([side.follower])
            await self.same(side)
        self.isr = set(IDS)
        self.know()
        tables = [await side.table() for side in self.sides.values()]
        assert set(tables[0]) == {key for key, there in self.model.items() if there}
        assert tables == [tables[0]] * len(IDS)


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[dict[int, Side]]:
    hour = 3_600_000
    async with AsyncExitStack() as stack:
        brokers: dict[int, Broker] = {}
        for id in IDS:
            given = {"durability": "os", "cleaner_backoff_ms": hour, "retention_check_ms": hour}
            broker = Broker(folder / str(id), broker_id=id, ballast_bytes=0, **given)  # type: ignore[arg-type]
            brokers[id] = await stack.enter_async_context(broker)
        addresses = {id: {LISTENER: parse_address(each.kafka_address)} for id, each in brokers.items()}
        image = Image(brokers={id: Registration(id, 1, each) for id, each in addresses.items()})
        nursery = await stack.enter_async_context(trio.open_nursery())
        sides = {id: Side(id, broker, image) for id, broker in brokers.items()}
        for side in sides.values():
            await side.begin()
            nursery.start_soon(side.fetcher.run)
        yield sides
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", [*some(range(4), 4), 8, 52])
def test_no_deleted_key_comes_back(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    id = new_id()
    monkeypatch.setattr(catalog, "new_id", lambda: id)
    monkeypatch.setattr(Runtime, "lag_ms", LAG_MS)

    async def main() -> None:
        with trio.fail_after(120):
            async with three(tmp_path) as sides:
                await Chaos(seed, sides).run()

    trio.run(main)
