"""Share sessions of a broker without a server: what sessions remember is bounded. And their acknowledgements."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker.broker import LocalBroker
from krappy.broker.groups.room import GroupRoom
from krappy.broker.groups.share_group import AT_ONCE, LeasedPartition, ShareSession
from krappy.broker.groups.share_partitions import EACH, MEMORY_SHARE, SharePartitions
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.share import Ack, AckType, ShareRules
from krappy.errors import NotLeader
from krappy.ports.shares import Opener, PartitionId
from krappy.types import Span
from tests.broker.engine import publish, running

LONG_MS = 600_000  # ms
ADA, BOB = (Opener((f"User:{name}",), "127.0.0.1", f"User:{name}") for name in ("ada", "bob"))


def shares_of(most: int) -> SharePartitions:
    config = SimpleNamespace(group_share_max_share_sessions=most, memory_bytes=1 << 20, max_groups=9, authorizes=True)
    runtime = SimpleNamespace(config=config, authorizer=SimpleNamespace(signals=()))
    keeper = SimpleNamespace(room=GroupRoom(cast(Any, runtime)), check_share_room=lambda owner: None)
    shares = SharePartitions(*cast(Any, (runtime, keeper, None)))
    shares.rules_of = lambda name: ShareRules()
    return shares


@trio_test
async def test_sessions_and_their_partitions_are_bounded() -> None:
    shares = shares_of(1)
    _, session = shares.begin("g", "one", ADA)
    room = (1 << 20) // MEMORY_SHARE // EACH
    session.parts = {(b"", index): None for index in range(room - 5)}
    shares.make_room(session, 5)
    with pytest.raises(Refused):
        shares.make_room(session, 6)
    with pytest.raises(Refused):
        shares.begin("g", "two", ADA)


@trio_test
async def test_who_has_many_sessions_or_partitions_keeps_nobody_out() -> None:
    shares, room = shares_of(4), (1 << 20) // MEMORY_SHARE // EACH
    hers = [shares.begin("g", f"hers-{number}", ADA)[1] for number in range(4)]
    his = [shares.begin("h", f"his-{number}", BOB)[1] for number in range(2)]
    assert [each.closed for each in hers] == [True, True, False, False]
    for opener in (ADA, BOB):  # each has two
        with pytest.raises(Refused):
            shares.begin("g", "one-more", opener)
    hers[2].parts = {(b"", index): None for index in range(room)}
    shares.make_room(his[0], room // 3)
    assert [each.closed for each in (*hers[2:], *his)] == [True, False, False, False]


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
        self.group, self.session = connection.session("g", "m", 0, ADA)
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
            group.open_session("m", ADA)
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
async def test_what_a_session_gives_back_when_it_ends_wakes_one_that_waits(tmp_path: Path) -> None:
    """Hundreds may wait, and each that is woken looks at all of its partitions."""
    async with running(tmp_path) as broker, trio.open_nursery() as nursery:
        sharing, woken = Sharing(broker), list[str]()
        await sharing.begin(10)
        await sharing.acquired(sharing.session)

        async def wait(member: str) -> None:
            _, session = sharing.shares.connect().session("g", member, 0, ADA)
            session.parts[sharing.id] = sharing.leased
            assert await sharing.group.until_some(session, LONG_MS, lambda: False)
            woken.append(member)

        for member in ("one", "two", "three"):
            nursery.start_soon(wait, member)
        await wait_all_tasks_blocked()
        sharing.shares.close_session(sharing.group, sharing.session, seen=True)
        await wait_all_tasks_blocked()
        assert len(woken) == 1
        nursery.cancel_scope.cancel()


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
