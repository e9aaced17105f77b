"""What concerns very many groups at once gives others their turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.groups.group import Group
from krappy.broker.groups.member import Member
from krappy.broker.groups.shared import SharedPartition
from krappy.core.kafka.offset import Offset
from krappy.core.leases import Leases
from krappy.handlers.handles import Membership
from krappy.handlers.kafka.groups import list_groups
from krappy.handlers.native.groups import groups
from krappy.server.session import Allowance
from krappy.server.session import Session as NativeSession
from krappy.testing.sessions import WillingPeer
from krappy.wire import messages as m
from tests.broker.engine import publish, running, until

MANY = 1200
LONG_MS = 600_000  # ms
MOST = 2 * 250  # calls between two turns of others; doubled, since chance says who runs first in a round


class Counter:
    """`done`: calls so far; `most`: the most calls between two turns of others."""

    def __init__(self) -> None:
        self.done = self.most = 0

    def of(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        run = getattr(where, name)

        def counted(*given: Any, **more: Any) -> Any:
            self.done += 1
            return run(*given, **more)

        monkeypatch.setattr(where, name, counted)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async def others() -> None:
            while True:
                before = self.done
                await trio.lowlevel.checkpoint()
                self.most = max(self.most, self.done - before)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await trio.lowlevel.checkpoint()
            yield
            for _ in range(2):  # what was done last counts, too
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


class Session:
    """What a handler that lists groups needs."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.access = broker.access()
        self.pauses = 0

    async def pause(self) -> None:
        self.pauses += 1
        await self.broker.create_topic(f"u{self.pauses}", 1, {})  # anything may happen meanwhile
        await self.broker.groups.commit(f"later{self.pauses}", [("t", 0, 0)])


async def with_positions(broker: LocalBroker) -> None:
    """Half of the groups are native ones."""
    for number in range(MANY // 2):
        await broker.groups.commit(f"native{number}", [("t", 0, 0)])
        group = broker.kafka_groups.make(f"kafka{number}")
        await broker.kafka_groups.offsets.commit(group, {("t", 0): Offset(0, -1, "", 0)})


@trio_test
async def test_a_topic_in_which_they_have_positions_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counter()
    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        await with_positions(broker)
        count.of(monkeypatch, broker.groups.storage, "delete_states")
        count.of(monkeypatch, broker.kafka_groups.store, "write")
        async with count.watching():
            await broker.delete_topic("t")
        assert count.done == MANY
        assert count.most <= MOST
        assert not any(broker.groups.positions(f"native{number}") for number in range(MANY // 2))
        assert not any(broker.kafka_groups.groups[f"kafka{number}"].offsets for number in range(MANY // 2))


@trio_test
async def test_a_topic_that_they_read_gains_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, kept = Counter(), Counter()
    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        names = [f"g{number}" for number in range(MANY)]
        for name in names:
            await broker.groups.join(name, "a", ["t"])
        taken.of(monkeypatch, Group, "add")
        kept.of(monkeypatch, broker.groups.storage, "put")
        async with taken.watching(), kept.watching():
            await broker.alter_topic("t", None, 2)
            await broker.alter_topic("t", None, 3)  # while the groups take up the one before
            await until(lambda: kept.done >= MANY and all(len(broker.groups.positions(name)) == 3 for name in names))
        assert taken.done == 2 * MANY
        assert max(taken.most, kept.most) <= MOST
    async with running(tmp_path) as broker:
        assert all(len(broker.groups.positions(name)) == 3 for name in names)


@trio_test
async def test_they_are_listed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        await with_positions(broker)
        session: Any = Session(broker)
        native = await groups(session, m.Groups())
        assert session.pauses > MANY // 250
        kafka = await list_groups(session, {}, 0)
        for names in ([each["group"] for each in native.groups], sorted(each["group_id"] for each in kafka["groups"])):
            assert names == sorted(names)
            assert len({name for name in names if not name.startswith("later")}) == MANY


@trio_test
async def test_all_members_of_a_connection_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counter()
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 300)
        allowance = Allowance(1000)
        session = NativeSession(broker, "a", WillingPeer(), 1 << 20, allowance)
        for _ in range(300):
            member = await broker.groups.join("g", "a", ["t"])
            session.add(Membership(member), [])
            assert member.poll_now(1, 1 << 20)
        count.of(monkeypatch, Member, "close")
        async with count.watching():
            session.close()
            await until(lambda: not broker.groups.describe("g")["members"])
        assert count.done == 300
        assert count.most <= 2 * 16
        assert allowance.used == 0
        partition = broker.groups.describe("g")["partitions"][0]
        assert (partition["leased"], partition["redelivering"]) == (0, 300)


@trio_test
async def test_leases_that_they_have_end_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counter()
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 1)
        for number in range(300):
            member = await broker.groups.join(f"g{number}", "a", ["t"], lease_ms=LONG_MS)
            assert member.poll_now(1, 1 << 20)
        count.of(monkeypatch, SharedPartition, "ring")
        later = broker.clock.steady_ms() + LONG_MS
        monkeypatch.setattr(broker.clock, "steady_ms", lambda: later)
        async with count.watching():
            broker.groups.alarms._earlier.set()
            await until(lambda: count.done == 300)
        assert count.most <= 2 * 16


@trio_test
async def test_events_that_a_request_names_often_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Extend of 50,000 times the same 3,000 runs took two minutes of everybody's time."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        await publish(topic.led(0), 100)
        member = await broker.groups.join("g", "a", ["t"])
        assert member.poll_now(100, 1 << 20)
        await member.ack([("t", 0, offset, offset) for offset in range(0, 100, 2)]).wait()
        often: list[Any] = [["t", 0, first, 99] for first in range(90)] * 20  # lists, as requests have them
        (partition,) = [each for each in broker.groups.describe("g")["partitions"] if each["leased"]]
        assert partition["leased"] == 50
        for name in ("extend", "uncount", "nack", "ack"):
            count = Counter()
            count.of(monkeypatch, Leases, name)
            if name == "extend":
                member.extend(often, LONG_MS)
            elif name == "uncount":
                member.uncount(often, None)
            elif name == "nack":
                member.nack(often)
                assert {lease[4] for lease in (await member.poll(100, 1 << 20)).leases} == {1}
            else:
                await member.ack([["t", 0, 50, 60], *often, ["t", 0, 0, 99]]).wait()  # type: ignore[list-item]
            assert count.done == 1, name
        assert broker.groups.positions("g") == [("t", 0, 100), ("t", 1, 0)]
