"""Share sessions of a broker without a server: what sessions remember is bounded. And their acknowledgements."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.groups.share_group import AT_ONCE, LeasedPartition, ShareSession
from krappy.broker.groups.share_partitions import EACH, MEMORY_SHARE, SharePartitions
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.share import Ack, AckType, ShareRules
from krappy.errors import NotLeader
from krappy.ports.shares import PartitionId
from krappy.types import Span
from tests.broker.engine import publish, running

LONG_MS = 600_000  # ms


@trio_test
async def test_sessions_and_their_partitions_are_bounded() -> None:
    config = SimpleNamespace(group_share_max_share_sessions=1, memory_bytes=1 << 20)
    runtime = SimpleNamespace(config=config, authorizer=SimpleNamespace(signals=()))
    keeper = SimpleNamespace(held_positions=0, check_share_room=lambda: None)
    shares = SharePartitions(*cast(Any, (runtime, keeper, None)))
    shares.rules_of = lambda name: ShareRules()
    _, session = shares.begin("g", "one", "ada")
    room = (1 << 20) // MEMORY_SHARE // EACH
    session.parts = {(b"", index): None for index in range(room - 5)}
    shares.check_parts(5)
    with pytest.raises(Refused):
        shares.check_parts(6)
    with pytest.raises(Refused):
        shares.begin("g", "two", "ada")


class Sharing:
    """A member "m" of the share group "g", with a session for a topic of one partition and `count` records."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker, self.shares = broker, broker.groups.shares

    async def begin(self, count: int) -> None:
        topic, _ = await self.broker.create_topic("t", 1, {})
        self.partition = topic.led(0)
        await publish(self.partition, count)
        self.shares.rules_of = lambda name: ShareRules(lock_ms=LONG_MS, start="earliest", max_locks=count)
        await self.broker.groups.states.begin("g")
        self.id = PartitionId(topic.id, 0)
        connection = self.shares.connect()
        self.group, self.session = connection.session("g", "m", 0, "ada")
        leased = (await connection.open(self.group, {self.id: self.partition}))[self.id]
        assert isinstance(leased, LeasedPartition)
        self.session.parts[self.id] = self.leased = leased

    async def acquired(self, session: ShareSession) -> list[tuple[int, int]]:
        return [each[2:4] for each in (await self.group.acquire(session, 10_000, 1 << 20)).leases]


@trio_test
@pytest.mark.parametrize("lost", ["lock ended", "began anew", "deposed"])
async def test_what_is_lost_while_others_have_their_turn_is_not_acknowledged(tmp_path: Path, lost: str) -> None:
    """A part was acknowledged before; the answer tells that not all was."""
    count = 2 * AT_ONCE + 10
    async with running(tmp_path) as broker:
        sharing = Sharing(broker)
        await sharing.begin(count)
        group, session, leased = sharing.group, sharing.session, sharing.leased
        assert await sharing.acquired(session) == [(0, count - 1)]
        kinds = [AckType.ACCEPT, AckType.RELEASE] * (count // 2)
        taking = group.acknowledge(session, leased, [Ack(n, n, kind) for n, kind in enumerate(kinds)])
        next(taking)
        if lost == "lock ended":
            leased.leases.expire(10**15)
        elif lost == "began anew":
            group.open_session("m", "ada")
        else:
            group.lose(leased, leased.partition.deposed())
        with pytest.raises((Refused, NotLeader)):
            next(taking)
        if lost == "lock ended":
            assert leased.leases.held_by("m", 0, count) == []
            settled = set(range(0, AT_ONCE, 2))
            again = {n for first, last in await sharing.acquired(session) for n in range(first, last + 1)}
            assert again == set(range(count)) - settled


@trio_test
async def test_acknowledgements_in_several_turns_are_all_taken(tmp_path: Path) -> None:
    count = 2 * AT_ONCE + 10
    async with running(tmp_path) as broker:
        sharing = Sharing(broker)
        await sharing.begin(count)
        await sharing.acquired(sharing.session)
        acks = [Ack(n, n, AckType.ACCEPT if n % 2 else AckType.REJECT) for n in range(count)]
        assert len([*sharing.group.acknowledge(sharing.session, sharing.leased, acks)]) == 2
        assert await sharing.group.durable([sharing.leased]).wait() == {}
        assert sharing.leased.leases.floor == count


@trio_test
async def test_a_leader_that_may_be_deposed_leases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that is so only after the records were read from the disk."""
    async with running(tmp_path) as broker:
        sharing = Sharing(broker)
        await sharing.begin(10)
        sure = False
        monkeypatch.setattr(broker, "may_read", lambda *partition: sure)
        assert not await sharing.group.until_some(sharing.session, 0, lambda: False)
        assert await sharing.acquired(sharing.session) == []
        read, now = LeasedPartition.read, LeasedPartition.read_now

        async def read_late(leased: LeasedPartition, *asked: int) -> Span:
            nonlocal sure
            span, sure = await read(leased, *asked), False
            return span

        def wait_for_disk(leased: LeasedPartition, *asked: int) -> Span:
            raise BlockingIOError

        sure = True
        monkeypatch.setattr(LeasedPartition, "read_now", wait_for_disk)
        monkeypatch.setattr(LeasedPartition, "read", read_late)
        assert await sharing.acquired(sharing.session) == []
        monkeypatch.setattr(LeasedPartition, "read_now", now)
        sure = True
        assert await sharing.acquired(sharing.session) == [(0, 9)]


@trio_test
async def test_one_state_that_is_lost_is_told_of_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        sharing = Sharing(broker)
        await sharing.begin(10)
        other, _ = await broker.create_topic("other", 1, {})
        connection, id = sharing.shares.connect(), PartitionId(other.id, 0)
        lost = (await connection.open(sharing.group, {id: other.led(0)}))[id]
        assert isinstance(lost, LeasedPartition)
        for leased in (lost, sharing.leased):
            leased.changed()
        durable = sharing.group.durable([lost, sharing.leased])
        why = lost.partition.deposed()
        sharing.group.lose(lost, why)
        assert await durable.wait() == {lost: why}
