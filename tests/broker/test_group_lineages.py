"""Where a group goes on when its log has another history than the one that the group has read (KIP-320): an election
has taken events from the log, and others have come in their place. An event counts as settled only if it was delivered
and acknowledged, and no more is delivered again than must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest
import trio

from krappy.broker.groups.distant import DistantPartition, DistantPartitions
from krappy.broker.groups.group_poll import GroupPoll
from krappy.broker.groups.group_reads import KeptReads, Read
from krappy.broker.groups.shared import SharedPartition
from krappy.broker.partition.partition import Partition
from krappy.core import lineage
from krappy.core.epochs import Epochs
from krappy.core.keyed_leases import KeyedLeases
from krappy.core.leases import Leases, LogSlice
from krappy.errors import KrappyError, NotLeader, OffsetOutOfRange
from krappy.ports.cluster import PeerRead, Place
from krappy.records import batch
from krappy.types import Span, TopicPartition
from krappy.waiting import Signal

SEEDS = 60
STEPS = 60
MOST = 2  # leader epochs that are kept of a position: so few that others are often missed
LEADER = 2
Written = tuple[int, int]  # an event: its leader epoch and offset say which one it is


class Log:
    """A replica's: the leader epoch of each event."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.epochs = Epochs()
        self.cuts = self.clean_upto = 0

    @property
    def end_offset(self) -> int:
        return len(self.events)

    def read(self, offset: int, end: int) -> Span:
        """Some batches: each has the events of an epoch."""
        data = bytearray()
        for epoch, first in self.epochs.kept(offset, end):
            some = [n for n in range(max(first, offset), end) if self.events[n] == epoch]
            if some:
                keys, values = [b"%d" % (n % 3) for n in some], [b""] * len(some)
                data += batch.encode(keys, values, timestamps=0, base_offset=some[0], leader_epoch=epoch)
        return Span(bytes(data), max(offset, end), max(0, end - offset))

    def append(self, epochs: list[int]) -> None:
        for epoch in epochs:
            self.epochs.note(epoch, len(self.events))
            self.events.append(epoch)

    def follow(self, leader: Log) -> None:
        same = next((n for n, (a, b) in enumerate(zip(self.events, leader.events, strict=False)) if a != b), None)
        del self.events[min(len(leader.events), len(self.events)) if same is None else same :]
        self.epochs.cut(len(self.events))
        self.cuts += 1
        self.append(leader.events[len(self.events) :])


class World:
    """One partition, its replicas, and a group that reads it, from here or from elsewhere."""

    def __init__(self, random: Random, distant: bool, kind: type[Leases]) -> None:
        self.random, self.distant, self.kind = random, distant, kind
        self.logs = [Log(), Log(), Log()]
        self.state = SimpleNamespace(leader=LEADER, isr=(LEADER,), leader_epoch=0)
        self.log = self.logs[0]
        self.held: list[Written] = []  # delivered, and not acknowledged yet
        self.acked: set[Written] = set()
        self.history: list[int] = []  # the epochs of the events before the group's position, as it has read them
        self.exact = True  # whether it has all leader epochs of these
        self.keeper = SimpleNamespace(reads=KeptReads(), now_ms=lambda: 0)
        self.shared: SharedPartition
        self.elect()
        self.load(kind(0, max_deliveries=1_000_000))

    @property
    def epoch(self) -> int:
        return cast(int, self.state.leader_epoch)

    def elect(self) -> None:
        self.state.leader_epoch += 1
        self.log = self.random.choice(self.logs)
        self.log.epochs.lead(self.epoch, self.log.end_offset)

    def load(self, leases: Leases) -> None:
        owner = SimpleNamespace(changed=self.changed, tell_lost=lambda shared: None, is_sure=True, keeps_epochs=True)
        owner.name = "g"
        partition = self.elsewhere() if self.distant else cast(Any, Here(self))
        self.shared = SharedPartition(cast(Any, owner), partition, leases)

    def elsewhere(self) -> DistantPartition:
        image = SimpleNamespace(partitions=[SimpleNamespace(state=self.state)])
        topic = SimpleNamespace(name="t", id=b"id", count=1, local={}, image=image)
        runtime = SimpleNamespace(id=1, stopped=False)
        found = DistantPartitions(cast(Any, runtime), cast(Any, Leader(self))).of(cast(Any, topic), 0)
        assert isinstance(found, DistantPartition)
        return found

    def changed(self, shared: SharedPartition) -> None:
        """The group has gone on, or back."""
        frontier = shared.leases.frontier
        self.history = (self.log.events if frontier > len(self.history) else self.history)[:frontier]

    async def read(self) -> None:
        """The group polls for some events. While they are read, there may be an election."""
        await self.find()
        shared, most = self.shared, self.random.randint(1, 9)
        if self.distant:
            cast(DistantPartition, shared.partition).last_stable_offset = self.log.end_offset
        poll = GroupPoll(cast(Any, self.keeper), "m", 1_000, [shared], self.kind is KeyedLeases, most, 1 << 20)
        cold = poll.gather()
        if cold is not None:
            await poll.gather_from(cold, lambda: False)
        polled = poll.answer(0)
        for (_, _, _, _, data), (_, _, first, last, _) in product(polled.parts, polled.leases):
            got = {
                (header.leader_epoch, offset)
                for header, some in batch.split(data)
                for offset in batch.decode(some).offsets
                if first <= offset <= last
            }
            assert len(got) == last + 1 - first
            self.held += sorted(got - {*self.held})
        if polled.leases:
            assert shared.leases.frontier <= self.log.end_offset
        self.exact &= len(set(self.history)) <= MOST

    def ack(self) -> None:
        """Acknowledges some of what was ever delivered; part of that is lost by now. It leaves out events from before
        all known epochs: there the group can't tell a lost event from the one in its place."""
        pairs = self.shared.leases.lineage.pairs
        for event in self.random.sample(self.held, min(len(self.held), 3)):
            self.held.remove(event)
            epoch, offset = event
            if self.history[offset : offset + 1] != [epoch] and not (pairs and offset >= pairs[0][1]):
                continue
            if not self.shared.leases.ack("m", offset, offset, epoch):
                self.acked.add(event)

    async def find(self) -> None:
        epoch, leases = self.epoch, self.shared.leases
        before = self.history
        await self.shared.find()
        log = self.log.events
        unsettled = {offset for run in leases.runs() for offset in range(run.first, run.last + 1)}
        skipped = [n for n in range(leases.frontier) if n not in unsettled and (log[n], n) not in self.acked]
        assert not skipped, f"{skipped} count as settled, and were not acknowledged"
        pairs = zip(before, log, strict=False)
        parting = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(log)))
        assert leases.frontier <= parting
        if self.exact and epoch == self.epoch:  # else the group may have gone back once more
            assert leases.frontier == parting, "more is delivered again than must be"
        self.history = log[: leases.frontier]


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

    def read_now(self, offset: int, max_bytes: int, *, max_records: int) -> Span:
        if self._world.random.random() < 0.5:
            raise BlockingIOError
        return self.log.read(offset, self.log.end_offset)

    async def read(self, offset: int, max_bytes: int, *, max_records: int) -> Span:
        found = self.log.read(offset, self.log.end_offset)
        if self._world.random.random() < 0.3:
            self._world.elect()
        return found


class Leader:
    """Answers as other brokers would. Now and then there is an election before they answer."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def offsets_at(
        self, broker: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int | KrappyError]:
        return dict.fromkeys(partitions, self._world.log.end_offset)

    async def fetch(
        self, broker: int, wanted: Mapping[Place, tuple[int, int]], max_bytes: int, wait_s: float
    ) -> Mapping[Place, PeerRead | KrappyError]:
        await trio.lowlevel.checkpoint()
        if self._world.random.random() < 0.1:
            self._world.elect()
        found = {place: self._read(*each) for place, each in wanted.items()}
        if self._world.random.random() < 0.1:
            self._world.elect()
        return found

    def _read(self, offset: int, epoch: int) -> PeerRead | KrappyError:
        log = self._world.log
        end = log.end_offset
        if epoch != self._world.epoch:
            return NotLeader("it leads in another epoch")
        if not 0 <= offset <= end:
            return OffsetOutOfRange("out of range")
        return PeerRead(0, end, end, *log.read(offset, end))

    async def end_of_epoch(self, broker: int, at: TopicPartition, current: int, epoch: int) -> tuple[int, int] | None:
        await trio.lowlevel.checkpoint()
        world = self._world
        if world.random.random() < 0.1:
            world.elect()
        if current != world.epoch:
            raise NotLeader("it leads in another epoch")
        found = world.log.epochs.end_of(epoch, world.log.end_offset) if epoch >= 0 else None
        if world.random.random() < 0.1:
            world.elect()  # the answer does not count any more
        return found


@pytest.mark.parametrize("kind", [Leases, KeyedLeases])
@pytest.mark.parametrize("distant", [False, True])
def test_what_counts_as_settled_was_acknowledged(
    distant: bool, kind: type[Leases], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MOST", MOST)
    told = 0

    async def history(random: Random) -> None:
        nonlocal told
        world = World(random, distant, kind)
        for _ in range(STEPS):
            step = random.choice(("write", "write", "read", "read", "read", "ack", "elect", "restart", "follow"))
            try:
                if step == "write":
                    world.log.append([world.epoch] * random.randint(1, 5))
                elif step == "read":
                    await world.read()
                elif step == "ack":
                    world.ack()
                elif step == "follow":
                    random.choice([each for each in world.logs if each is not world.log]).follow(world.log)
                elif step == "elect":
                    world.elect()
                    await world.find()
                else:
                    flat = msgpack.unpackb(msgpack.packb(world.shared.leases.dump()))
                    world.load(kind.load(flat, max_deliveries=1_000_000))
            except NotLeader:
                assert distant
            told += world.shared.cuts

    async def main() -> None:
        for seed in range(SEEDS):
            try:
                await history(Random(seed))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    trio.run(main)
    assert told > SEEDS


def test_an_epoch_may_begin_where_the_last_event_before_is() -> None:
    """One replica may lack the first events of the epoch, as compaction has removed them, and another replica may have
    them."""
    one, other = (
        batch.encode([None] * 2, [b""] * 2, timestamps=0, base_offset=base, leader_epoch=epoch)
        for base, epoch in ((5, 1), (12, 3))
    )
    log, _ = Read(3, Span(one + other, 14, 4), keys=False).part(3, 100, 1 << 20)
    assert log.epochs == [(1, 3), (3, 7)]
    leases = Leases(3, max_deliveries=3)
    leases.lease(0, "m", 1_000, log, 3)
    assert (leases.frontier, leases.lineage.pairs) == (13, ((1, 3), (3, 7)))


class Copy(Here):
    """A follower's copy of the partition, which has a log of its own."""

    still_leads = False
    epoch = 0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.own = Log()

    @property
    def log(self) -> Log:
        return self.own


def test_where_a_replica_lacks_the_last_epoch_its_leader_is_asked() -> None:
    """The replica can't know whether that epoch's events are lost or still to come. It may be long before something new
    is written, and what was given back must be delivered again before that."""
    world = World(Random(0), False, Leases)
    world.random = cast(Any, SimpleNamespace(random=lambda: 1.0))  # no more elections
    led, copy = world.elsewhere(), Copy(world)
    shared, leases = world.shared, world.shared.leases
    world.log.append([1] * 5)
    copy.own.append([1] * 5)
    leases.lease(0, "m", 1_000, LogSlice(0, 10, [(0, 9)], epochs=[(1, 0), (2, 5)]), 10)
    world.state.leader_epoch = 3
    world.log.epochs.lead(3, 5)
    cast(Any, shared.group).as_led = lambda _: led
    shared.move(cast(Any, copy))
    leases.nack(0, "m", 0, 4)
    assert shared.wanted(0) == 0
    trio.run(shared.find)
    assert (shared.partition, leases.frontier, shared.is_found) == (led, 5, True)
    shared.move(cast(Any, copy))
    assert shared.wanted(0) == 0
    assert shared.is_found, "it has all that is left"


def test_where_the_last_leaders_log_began_says_nothing_of_the_next_ones() -> None:
    """The next leader has events that the last one had deleted, and new ones behind them, which nobody has read."""
    world = World(Random(0), True, Leases)
    world.random = cast(Any, SimpleNamespace(random=lambda: 1.0))  # no more elections
    shared, leases = world.shared, world.shared.leases
    distant = cast(DistantPartition, shared.partition)
    distant.begin()
    distant.take(PeerRead(100, 110, 110, b"", 110, 0), 110)
    shared.trim()
    leases.lease(0, "m", 1_000, LogSlice(100, 110, [(100, 109)], epochs=[(world.epoch, 100)]), 10)
    leases.ack("m", 100, 109)
    world.log.append([world.epoch] * 50)
    world.state.leader_epoch += 1
    world.log.epochs.lead(world.epoch, 50)
    world.log.append([world.epoch] * 100)
    assert (leases.floor, shared.is_found) == (110, False)
    trio.run(shared.find)
    assert (leases.floor, shared.is_found) == (50, True)


@pytest.mark.parametrize("keeps", [False, True])
def test_epochs_of_a_position_without_any_are_written_at_once(keeps: bool) -> None:
    """The group may stay without members for long, and its next coordinator must know which history the group has read.
    They are not written where the storage of the group would not keep them."""
    world, written = World(Random(0), False, Leases), list[SharedPartition]()
    group: Any = world.shared.group
    group.changed, group.keeps_epochs = written.append, keeps
    world.log.append([world.epoch] * 5)
    shared, shared.leases = world.shared, Leases(5, max_deliveries=3)
    for _ in range(2):
        shared.trim()
        assert shared.leases.lineage.pairs == ((world.epoch, 0),)
        assert written == [shared] * keeps


def test_events_of_two_epochs_before_the_position_are_noted_as_of_the_last() -> None:
    """A group that knew no epoch before reads the events that wait together with new ones."""
    leases = Leases.load([1, 10, 0, 5, 5, 1, 0], max_deliveries=3)
    leases.lease(0, "m", 1_000, LogSlice(5, 20, [(5, 19)], epochs=[(1, 5), (2, 8)]), 100)
    assert (leases.frontier, leases.lineage.pairs) == (20, ((2, 10),))
    assert Leases.load(leases.dump(), max_deliveries=3).lineage.pairs == leases.lineage.pairs
