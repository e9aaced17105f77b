"""Members that come, ack, nack, stall and leave at random, and brokers that die under them.

The test keeps what any user would count: which events the broker said are acknowledged, which acks it left unanswered,
which events stand in the dead-letter topic, and in what order the events of a key were seen.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy import errors
from krappy.broker.broker import LocalBroker
from krappy.broker.groups.member import Member
from krappy.records import batch
from tests.broker.engine import Got, as_killed, events, ranges, read_all, running

LIVES = 3
MEMBERS = 6
KEYS = [b"a", b"b", b"c", b"d", None]
Place = tuple[int, int]  # partition, offset


class Chaos:
    def __init__(self, seed: int, order: str) -> None:
        self.random = random.Random(seed)
        self.order = order
        self.max_deliveries = 3 if order == "none" else 10_000
        self.acked: set[Place] = set()  # the broker has said so
        self.maybe: Counter[Place] = Counter()  # acked, and not refused: not answered yet, or never
        self.keys: dict[tuple[int, bytes], list[int]] = defaultdict(list)  # the events of each key
        self.given = 0

    async def join(self, broker: LocalBroker) -> Member:
        lease_ms = self.random.choice([15, 60, 5_000])
        return await broker.groups.join(
            "g", "c", ["t"], order=self.order, lease_ms=lease_ms, max_deliveries=self.max_deliveries
        )

    async def look(self, broker: LocalBroker) -> None:
        """What the log holds now."""
        self.keys.clear()
        for partition in broker.topic("t").local.values():
            for event in await read_all(partition):
                if event.key is not None:
                    self.keys[partition.index, event.key].append(event.offset)

    async def publish(self, broker: LocalBroker) -> None:
        partition = self.random.choice(broker.topic("t").all_led())
        keys = [self.random.choice(KEYS) for _ in range(self.random.randint(1, 30))]
        values = [b"x" * self.random.choice([1, 10, 2000]) for _ in keys]
        later = partition.publish(batch.encode(keys, values, timestamps=1_000))
        first = partition.log.end_offset
        for offset, key in enumerate(keys, first):
            if key is not None:
                self.keys[partition.index, key].append(offset)
        assert (await later.wait()).offset == first

    async def work(self, broker: LocalBroker, stop: trio.Event) -> None:
        """Joins, works a while, and goes, until it is told to stop."""
        while not stop.is_set():
            member = await self.join(broker)
            for _ in range(self.random.randint(1, 12)):
                polled = await member.poll(self.random.choice([1, 5, 40]), 1 << 16, 10)
                if stop.is_set():
                    break
                got = events(polled)
                self.check(got)
                await self.handle(member, got)
            member.close()

    def check(self, got: list[Got]) -> None:
        self.given += len(got)
        here = {(event.partition, event.offset) for event in got}
        for event in got:
            assert (event.partition, event.offset) not in self.acked, "an acknowledged event was given out again"
            if self.order == "key" and event.key is not None:
                before = {(event.partition, o) for o in self.keys[event.partition, event.key] if o < event.offset}
                assert before <= self.acked | set(+self.maybe) | here, "an event came before an earlier one of its key"

    async def handle(self, member: Member, got: list[Got]) -> None:
        if self.random.random() < 0.15:
            await trio.sleep(self.random.random() * 0.04)  # some leases end meanwhile
        for event in got:
            at = (event.partition, event.offset)
            place = ("t", *at, event.offset)
            what = self.random.random()
            if what < 0.08:
                try:
                    member.nack([place], self.random.choice([0, 0, 10]))
                except errors.LeaseLost:
                    continue
                if event.key is not None:
                    return  # with key order the later ones of its key went back with it
            elif what < 0.12:
                continue  # left alone: its lease ends some time
            elif what < 0.15:
                return
            else:
                self.maybe[at] += 1
                try:
                    await member.ack([place]).wait()
                except errors.LeaseLost:
                    self.maybe[at] -= 1
                else:
                    self.acked.add(at)


@pytest.mark.parametrize("order", ["none", "key"])
@trio_test
async def test_nothing_is_lost_and_nothing_acknowledged_comes_again(tmp_path: Path, order: str) -> None:
    chaos = Chaos(7, order)
    for life in range(LIVES):
        async with running(tmp_path / str(life)) as broker:
            await broker.create_topic("t", 2, {}, if_absent=True)
            await chaos.look(broker)
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                for _ in range(MEMBERS):
                    nursery.start_soon(chaos.work, broker, stop)
                for _ in range(60):
                    await chaos.publish(broker)
                    await trio.sleep(chaos.random.random() * 0.005)
                # What comes later did not happen.
                as_killed(tmp_path / str(life), tmp_path / str(life + 1))
                acked, maybe = set(chaos.acked), Counter(chaos.maybe)
                stop.set()
        chaos.acked, chaos.maybe = acked, maybe
    async with running(tmp_path / str(LIVES)) as broker:
        await chaos.look(broker)
        member = await chaos.join(broker)
        while any(partition["lag"] for partition in broker.groups.describe("g")["partitions"]):
            polled = await member.poll(1000, 1 << 20, 50)
            chaos.check(events(polled))
            await member.ack(ranges(polled)).wait()
            chaos.acked |= {(event.partition, event.offset) for event in events(polled)}
        dead = set()
        if "t.g.dead" in broker.topics:
            for event in await read_all(broker.topic("t.g.dead").led(0)):
                origin = dict(event.headers)
                dead.add((int(origin["krappy-origin-partition"] or b""), int(origin["krappy-origin-offset"] or b"")))
        assert bool(dead) == (order == "none")
        every = {
            (partition.index, event.offset)
            for partition in broker.topic("t").local.values()
            for event in await read_all(partition)
        }
        assert len(every) > 1000
        assert chaos.given > len(every), "nothing was given out twice: the test does not do what it should"
        assert every <= chaos.acked | set(+chaos.maybe) | dead
