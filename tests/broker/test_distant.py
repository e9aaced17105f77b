"""Partitions of which a broker has no replica: what it asks their leaders, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from krappy.broker.groups.distant import DistantPartition, DistantPartitions
from krappy.errors import KrappyError, NotLeader, OffsetOutOfRange
from krappy.ports.audit import asked_for, whose
from krappy.ports.cluster import PeerRead, Place
from krappy.types import TopicPartition

LEADER, EPOCH = 2, 5


class Leader:
    """Leads all partitions. `logs`: start and end of the log by the topic's id. ListOffsets answers for the topic with
    the id `named`."""

    def __init__(self, id: bytes, start: int = 0, end: int = 0) -> None:
        self.logs = {id: (start, end)}
        self.named = id
        self.requests = 0

    async def offsets_at(
        self, broker: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int | KrappyError]:
        self.requests += 1
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(partitions, self.logs[self.named][1])

    async def fetch(
        self, broker: int, wanted: Mapping[Place, tuple[int, int]], max_bytes: int, wait_s: float
    ) -> Mapping[Place, PeerRead | KrappyError]:
        self.requests += 1
        found = {place: self._read(place, *each) for place, each in wanted.items()}
        await trio.sleep(wait_s)
        return found

    def _read(self, place: Place, offset: int, epoch: int) -> PeerRead | KrappyError:
        assert epoch == EPOCH
        if place[1] not in self.logs:
            return NotLeader("it does not know this topic")
        start, end = self.logs[place[1]]
        if not start <= offset <= end:
            return OffsetOutOfRange("out of range")
        return PeerRead(start, end, end, b"", offset, 0)


class World:
    def __init__(self, nursery: trio.Nursery, leader: Leader, count: int = 1) -> None:
        state = SimpleNamespace(leader=LEADER, isr=(LEADER,), leader_epoch=EPOCH)
        image = SimpleNamespace(partitions=[SimpleNamespace(state=state)] * count)
        self.topic = SimpleNamespace(name="t", id=b"new", count=count, local={}, image=image)
        self.looks = 0
        runtime = SimpleNamespace(id=1, stopped=False, topics=self, spawn=nursery.start_soon)
        self.all = DistantPartitions(cast(Any, runtime), cast(Any, leader))

    def get(self, name: str) -> Any:
        self.looks += 1
        return self.topic

    def partition(self, index: int = 0) -> DistantPartition:
        return cast(DistantPartition, self.all.of(cast(Any, self.topic), index))


def run(leader: Leader, test: Callable[[World], Awaitable[None]], count: int = 1) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await test(World(nursery, leader, count))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_a_leader_tells_of_an_earlier_topic_of_that_name_is_not_taken() -> None:
    """The leader does not know yet that the topic was made anew, and ListOffsets names no id."""
    leader = Leader(b"old", 1_000, 2_000)

    async def test(world: World) -> None:
        partition = world.partition()
        for start, at in (("earliest", None), ("latest", None), ("offset", 1_500), ("timestamp", 1)):
            with pytest.raises(NotLeader):
                await partition.offset_for(start, at)
        partition.moved.subscribe(lambda: None)
        await trio.sleep(3)
        assert (partition.start_offset, partition.last_stable_offset) == (0, -1)
        leader.logs = {b"new": (0, 7)}
        leader.named = b"new"
        await trio.sleep(1)
        assert (partition.start_offset, partition.last_stable_offset) == (0, 7)
        assert await partition.offset_for("latest", None) == 7

    run(leader, test)


def test_many_partitions_of_a_leader_are_begun_together() -> None:
    leader = Leader(b"new", 3, 7)

    async def test(world: World) -> None:
        partitions = [world.partition(index) for index in range(500)]
        for each in partitions:
            each.moved.subscribe(lambda: None)
        await trio.sleep(0.1)
        assert {(each.start_offset, each.last_stable_offset) for each in partitions} == {(3, 7)}
        assert leader.requests <= 3
        assert world.looks <= 5 * len(partitions), "each new one looked at all"

    run(leader, test, 500)


def test_where_a_log_starts_is_learnt_by_a_read_that_comes_too_late() -> None:
    """Also when nobody waits for news, as when only dead events are left."""
    leader = Leader(b"new", 0, 7)

    async def test(world: World) -> None:
        partition = world.partition()
        await partition.look()
        leader.logs[b"new"] = 5, 7
        with pytest.raises(OffsetOutOfRange):
            await partition.read(2, 1)
        assert (partition.start_offset, partition.last_stable_offset) == (5, 7)

    run(leader, test)


def test_a_replica_that_is_not_in_sync_is_not_used() -> None:
    async def test(world: World) -> None:
        here = object()
        world.topic.local[0] = here
        world.topic.held = world.topic.local.__getitem__
        assert isinstance(world.partition(), DistantPartition)
        world.topic.image.partitions[0].state.isr = (LEADER, 1)
        assert world.partition() is here

    run(Leader(b"new"), test)


class Deposed(Leader):
    """Answers like a leader OLD that was deposed and still tells, late, where its own log ends. Another broker leads
    since then, and its log has grown beyond that."""

    OLD, NEW_EPOCH, ENDS, LATER = LEADER, EPOCH + 1, 30, 50

    def __init__(self, id: bytes) -> None:
        super().__init__(id, 0, self.LATER)
        self.told = trio.Event()

    async def offsets_at(
        self, broker: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int | KrappyError]:
        if broker == self.OLD:
            await self.told.wait()
            return dict.fromkeys(partitions, self.ENDS)
        return dict.fromkeys(partitions, self.LATER)

    async def fetch(
        self, broker: int, wanted: Mapping[Place, tuple[int, int]], max_bytes: int, wait_s: float
    ) -> Mapping[Place, PeerRead | KrappyError]:
        if broker == self.OLD:
            return {place: NotLeader("it leads in an earlier epoch") for place in wanted}
        [(place, (offset, epoch))] = wanted.items()
        assert epoch == self.NEW_EPOCH
        self.told.set()
        await trio.sleep(1)
        return {place: PeerRead(0, 60, 60, b"events" if offset == self.LATER else b"", 60, 10)}


def test_what_the_last_leader_tells_late_is_not_where_the_next_ones_news_begin() -> None:
    """Else a group that has come to the end of the last leader's log would miss the events between."""
    leader = Deposed(b"new")

    async def test(world: World) -> None:
        partition, [known] = world.partition(), world.topic.image.partitions
        partition.moved.subscribe(lambda: None)
        await trio.sleep(0.1)
        known.state.leader, known.state.leader_epoch = LEADER + 1, leader.NEW_EPOCH
        world.all.look()
        await trio.sleep(1.2)
        assert partition.last_stable_offset == 60
        with pytest.raises(BlockingIOError):
            partition.read_now(leader.ENDS, 1)
        assert partition.read_now(leader.LATER, 1).data == b"events"

    run(leader, test)


def test_a_leader_is_asked_for_all_users_not_for_the_one_who_waited_first() -> None:
    """Else what all wait for would wait for the turns of that user."""
    leader, asked = Leader(b"new", 0, 7), list[str]()

    async def test(world: World) -> None:
        offsets_at = leader.offsets_at

        async def noting(*given: Any) -> Any:
            asked.append(whose())
            return await offsets_at(*given)

        leader.offsets_at = noting  # type: ignore[method-assign, assignment]
        with asked_for("eve"):
            partition = world.partition()
            partition.moved.subscribe(lambda: None)
            await trio.sleep(0.1)
        assert partition.last_stable_offset == 7
        assert set(asked) == {""}

    run(leader, test)
