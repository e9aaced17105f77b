"""Where a group goes on when its log has another history than the one that it has read (KIP-320): elections take events
from the log, and others come in their place. Whatever counts as settled was delivered, and no more is delivered again
than must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest
import trio

from krappy.broker.groups.distant import DistantPartition, DistantPartitions
from krappy.broker.groups.shared import SharedPartition
from krappy.broker.partition.partition import Partition
from krappy.core import leases as core_leases
from krappy.core.epochs import Epochs
from krappy.core.leases import Leases, LogSlice
from krappy.errors import KrappyError, OffsetOutOfRange
from krappy.ports.cluster import PeerRead, Place
from krappy.records import batch
from krappy.types import TopicPartition
from krappy.waiting import Signal

SEEDS = 100
STEPS = 40
MOST = 2  # leader epochs that are kept of a position: so few that others are often missed
LEADER = 2


class Log:
    """A replica's: the leader epoch of each event. With its offset it says which event it is."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.epochs = Epochs()
        self.end_offset = 0

    def append(self, epochs: list[int]) -> None:
        for epoch in epochs:
            self.epochs.note(epoch, len(self.events))
            self.events.append(epoch)
        self.end_offset = len(self.events)

    def follow(self, leader: Log) -> None:
        same = next((n for n, (a, b) in enumerate(zip(self.events, leader.events, strict=False)) if a != b), None)
        del self.events[min(len(leader.events), len(self.events)) if same is None else same :]
        self.epochs.cut(len(self.events))
        self.append(leader.events[len(self.events) :])


class World:
    """One partition, its replicas, and a group that reads it, from here or from elsewhere."""

    def __init__(self, random: Random, distant: bool) -> None:
        self.random, self.distant = random, distant
        self.logs = [Log(), Log(), Log()]
        self.state = SimpleNamespace(leader=LEADER, isr=(LEADER,), leader_epoch=0)
        self.log = self.logs[0]
        self.delivered: set[tuple[int, int]] = set()
        self.history: list[int] = []  # the epochs of the events before the group's position, as it has read them
        self.exact = True  # whether it has all leader epochs of these
        self.shared: SharedPartition
        self.elect()
        self.load(Leases(0, max_deliveries=9))

    @property
    def epoch(self) -> int:
        return cast(int, self.state.leader_epoch)

    def elect(self) -> None:
        self.state.leader_epoch += 1
        self.log = self.random.choice(self.logs)
        self.log.epochs.lead(self.epoch, self.log.end_offset)

    def load(self, leases: Leases) -> None:
        owner = SimpleNamespace(changed=lambda shared: None, tell_lost=lambda shared: None, is_sure=True)
        owner.still_here = True
        partition = self.elsewhere() if self.distant else cast(Any, Here(self))
        self.shared = SharedPartition(cast(Any, owner), partition, leases)

    def elsewhere(self) -> DistantPartition:
        image = SimpleNamespace(partitions=[SimpleNamespace(state=self.state)])
        topic = SimpleNamespace(name="t", id=b"id", count=1, local={}, image=image)
        runtime = SimpleNamespace(id=1, stopped=False)
        found = DistantPartitions(cast(Any, runtime), cast(Any, Leader(self))).of(cast(Any, topic), 0)
        assert isinstance(found, DistantPartition)
        return found

    async def find(self) -> int:
        """Has the group look where it is. Gives the offset."""
        if self.distant:
            await cast(DistantPartition, self.shared.partition).look()
        self.shared.trim()
        await self.shared.find()
        return self.shared.leases.frontier

    async def read(self) -> None:
        """The group reads some events, and acknowledges all but a few."""
        await self.find()
        leases, log = self.shared.leases, self.log
        start = leases.wanted(0)
        assert start is not None
        end = min(log.end_offset, start + self.random.randint(1, 9))
        if end <= start:
            return
        epochs = [(epoch, max(start, first)) for epoch, first in log.epochs.kept(start, end)]
        leased = leases.lease(0, "m", 1, LogSlice(start, end, [(start, end - 1)], None, epochs), 99)
        for lease in leased:
            self.delivered |= {(log.events[offset], offset) for offset in range(lease.first, lease.last + 1)}
            leases.ack("m", lease.first, lease.last - self.random.choice((0, 0, 1)))
        leases.release("m")
        self.history = log.events[: leases.frontier]
        self.exact &= len(set(self.history)) <= MOST

    def check(self, position: int) -> None:
        """The group has looked, and is at `position`."""
        log, leases = self.log.events, self.shared.leases
        unsettled = {offset for run in leases.runs() for offset in range(run.first, run.last + 1)}
        skipped = [n for n in range(position) if n not in unsettled and (log[n], n) not in self.delivered]
        assert not skipped, f"{skipped} count as settled, and were not delivered"
        pairs = zip(self.history, log, strict=False)
        parting = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(self.history), len(log)))
        assert position <= parting
        if self.exact:
            assert position == parting, "more is delivered again than must be"
        self.history = log[:position]


class Here:
    """A partition of this broker, as much of it as groups use."""

    topic, index, offline, start_offset, gone = "t", 0, "", 0, None
    still_leads = True
    end_of_epoch = Partition.end_of_epoch

    def __init__(self, world: World) -> None:
        self._world = world
        self.moved = Signal()

    @property
    def log(self) -> Log:
        return self._world.log

    @property
    def epochs(self) -> Epochs:
        return self.log.epochs

    @property
    def epoch(self) -> int:
        return self._world.epoch

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    last_stable_offset = end_offset


class Leader:
    """What other brokers answer."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def offsets_at(
        self, broker: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int | KrappyError]:
        return dict.fromkeys(partitions, self._world.log.end_offset)

    async def fetch(
        self, broker: int, wanted: Mapping[Place, int], max_bytes: int, wait_s: float
    ) -> Mapping[Place, PeerRead | KrappyError]:
        return {place: self._read(offset) for place, offset in wanted.items()}

    def _read(self, offset: int) -> PeerRead | KrappyError:
        log = self._world.log
        end = log.end_offset
        if not 0 <= offset <= end:
            return OffsetOutOfRange("out of range")
        some = log.events[offset : offset + 1]
        data = b"".join(
            batch.encode([None], [b""], timestamps=[0], base_offset=offset, leader_epoch=epoch) for epoch in some
        )
        return PeerRead(0, end, end, data, offset + len(some), len(some))

    async def end_of_epoch(self, broker: int, at: TopicPartition, current: int, epoch: int) -> tuple[int, int] | None:
        assert current == self._world.epoch
        return self._world.log.epochs.end_of(epoch, self._world.log.end_offset) if epoch >= 0 else None


@pytest.mark.parametrize("distant", [False, True])
def test_what_counts_as_settled_was_delivered(distant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_leases, "MOST_EPOCHS", MOST)

    async def history(random: Random) -> None:
        world = World(random, distant)
        for _ in range(STEPS):
            step = random.choice(2 * ("write", "read", "elect", "restart") + ("follow",))
            if step == "write":
                world.log.append([world.epoch] * random.randint(1, 5))
            elif step == "read":
                await world.read()
            elif step == "follow":
                random.choice([each for each in world.logs if each is not world.log]).follow(world.log)
            elif step == "elect":
                world.elect()
                world.check(await world.find())
            else:
                flat = msgpack.unpackb(msgpack.packb(world.shared.leases.dump()))
                world.load(Leases.load(flat, max_deliveries=9))

    async def main() -> None:
        for seed in range(SEEDS):
            try:
                await history(Random(seed))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    trio.run(main)
