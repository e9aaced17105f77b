"""The fetcher while leaders change, connections are cut and disks refuse, in random order.

Two brokers lead in turns. A new leader has all committed events, and may lack others. Whatever happens, a copy has all
events below its high watermark as they were committed. Once the trouble is over, it is equal to its leader's log.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from krappy.cluster.fetcher import Fetcher, FetchSettings
from krappy.cluster.inter_broker import InterBroker
from krappy.core.cluster.image import Image
from krappy.core.cluster.state import NOBODY
from krappy.errors import CorruptBatch, StorageError
from tests.cluster.replication import (
    LEADER,
    LISTENER,
    ME,
    OTHER,
    Listener,
    MemoryBroker,
    MemoryFollower,
    MemoryLeader,
    MemoryTopic,
    image_of,
    listening,
)

ID = bytes(15) + b"\1"
PARTITIONS = 3
STEPS = 60


class LedPartition:
    """A partition that one of two brokers leads."""

    def __init__(self, index: int) -> None:
        self.index, self.epoch = index, 5
        self.leaders = {LEADER: MemoryLeader(index), OTHER: MemoryLeader(index, epoch=-1)}
        self.leader = LEADER
        self.committed: list[bytes] = []  # the committed batches, as they were then
        self.copy = MemoryFollower(ID, index)
        self.values = 0

    @property
    def now(self) -> MemoryLeader:
        return self.leaders[self.leader]

    def produce(self, chance: random.Random) -> None:
        self.values += 1
        self.now.produce(*[b"%d" % self.values * chance.choice([1, 50, 2000])] * chance.randint(1, 3))

    def note(self) -> None:
        """Notes what is committed now."""
        now = self.now
        below = [each.data for each in now.log.batches if each.end <= now.high_watermark]
        assert below[: len(self.committed)] == self.committed[: len(below)], "what was committed has changed"
        if len(below) > len(self.committed):  # a new leader may not know yet that all of it is committed
            self.committed = below

    def move(self, chance: random.Random) -> None:
        """Lets the other broker lead. It has all committed batches, and some of the others."""
        self.note()
        before, self.leader = self.now, OTHER if self.leader == LEADER else LEADER
        self.epoch += 1
        now = self.leaders[self.leader] = MemoryLeader(self.index, self.epoch)
        now.log.cut(0)
        kept = len(self.committed) + chance.randint(0, len(before.log.batches) - len(self.committed))
        for each in before.log.batches[:kept]:
            now.log.add(each.data, each.base, each.epoch)
        now.epochs.lead(self.epoch, now.log.end)
        now.high_watermark = chance.randint(0, before.high_watermark)
        before.epoch = -1  # means that this broker does not lead
        before.moved.fire()

    def check(self) -> None:
        """Checks that the copy's committed part is equal to what was committed."""
        self.note()
        below = [each.data for each in self.copy.log.batches if each.end <= self.copy.high_watermark]
        assert below == self.committed[: len(below)]


class Chaos:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.partitions = [LedPartition(index) for index in range(PARTITIONS)]
        self.listeners: dict[int, Listener] = {}
        self.cuts = 0  # so many of the next answers are cut off

    def speak(self, data: bytes) -> list[bytes | None]:
        if self.cuts:
            self.cuts -= 1
            return [data[: self.chance.randrange(len(data))], None]
        return [data]

    async def hear(self, request: Any) -> None:
        if self.chance.random() < 0.1:
            await trio.sleep(self.chance.uniform(0, 0.05))

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            for id in (LEADER, OTHER):
                broker: Any = MemoryBroker(MemoryTopic("t", ID, [], (LEADER, ME, OTHER)))
                broker.id = id
                listener = await stack.enter_async_context(listening(broker))
                listener.speaks, listener.hears = self.speak, self.hear
                self.listeners[id] = listener
            nursery = await stack.enter_async_context(trio.open_nursery())
            image = Image(brokers={id: image_of(each, id).brokers[id] for id, each in self.listeners.items()})
            settings = FetchSettings(max_bytes=3000, response_max_bytes=6000, wait_max_ms=50, backoff_ms=100)
            fetcher = Fetcher(ME, InterBroker(LISTENER), lambda: image, lambda: 7, settings=settings)
            nursery.start_soon(fetcher.run)
            self._place()
            fetcher.set([each.copy for each in self.partitions])
            for _ in range(STEPS):
                self._step(fetcher)
                for each in self.partitions:
                    each.check()
                if self.chance.random() < 0.5:
                    await trio.sleep(self.chance.choice([0, 0, 0.001, 0.01, 0.06]))
            await self._heal(fetcher)
            nursery.cancel_scope.cancel()

    def _place(self) -> None:
        """Lets each broker serve the partitions that it leads now."""
        for id, listener in self.listeners.items():
            [topic] = listener.broker.topics.values()
            topic.leaders = {each.index: each.leaders[id] for each in self.partitions}

    def _step(self, fetcher: Fetcher) -> None:
        chance = self.chance
        each = chance.choice(self.partitions)
        deed = chance.random()
        if deed < 0.5:
            each.produce(chance)
        elif deed < 0.65:
            each.move(chance)
            self._place()
            # The copy may hear of the new leader at once or later.
            if chance.random() < 0.7:
                self._tell(each, fetcher)
        elif deed < 0.75:
            self._tell(each, fetcher)
        elif deed < 0.85:
            self.cuts += chance.randint(1, 3)
        elif deed < 0.92:
            errors = [StorageError("full"), CorruptBatch("wrong"), ValueError("a fault"), None]
            each.copy.fails += chance.choices(errors, k=chance.randint(1, 3))
            each.copy.disk_s = chance.choice([0, 0, 0.005, 0.03])
        elif deed < 0.96:
            each.copy.leader = NOBODY
            fetcher.changed()
        else:
            fetcher.set([one.copy for one in self.partitions if chance.random() < 0.7])

    def _tell(self, each: LedPartition, fetcher: Fetcher) -> None:
        """Tells the copy its leader and the present epoch. Like a broker, it syncs its log first."""
        copy = each.copy
        if copy.epoch != each.epoch:
            copy.synced = copy.log.end
        copy.epoch, copy.leader = each.epoch, each.leader
        fetcher.changed()

    async def _heal(self, fetcher: Fetcher) -> None:
        self.cuts = 0
        for each in self.partitions:
            each.copy.fails, each.copy.disk_s = [], 0
            self._tell(each, fetcher)
            each.produce(self.chance)
        fetcher.set([each.copy for each in self.partitions])
        with trio.fail_after(20):
            for each in self.partitions:
                while not (
                    each.copy.log.content == each.now.log.content
                    and each.copy.high_watermark == each.now.high_watermark == each.now.end_offset
                ):
                    await trio.sleep(0.005)
                each.check()


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_is_right_whatever_happens(seed: int) -> None:
    trio.run(Chaos(seed).run)
