"""State that a peer makes by naming things: the length of names, their number, and the memory that they take are
bounded."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.kafka_groups.group import EACH_GROUP
from krappy.broker.transactions import transactions
from krappy.broker.transactions.producer_ids import ProducerIds
from krappy.broker.upkeep import backup
from krappy.core.kafka.classic_member import Join, Joined
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import Beat
from krappy.core.transactions import Transaction
from krappy.errors import InvalidRequest, KrappyError, Overloaded
from krappy.types import TopicPartition
from tests.broker.engine import asks, running

MIB = 1 << 20
LONG = "x" * 32_000


async def join(broker: LocalBroker, group: str, **more: object) -> Joined:
    ask = Join("", None, "consumer", (("range", b""),), 600_000, 60_000, id_first=True)._replace(**more)  # type: ignore[arg-type]
    return await broker.kafka_groups.join(group, ask).wait()


def test_transactional_ids_are_bounded_in_length_and_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, max_transactional_ids=3) as broker:
            init = broker.transactions.init_producer
            with pytest.raises(InvalidRequest, match="1 to 1000 characters, not 32000"):
                await init(LONG, 60_000)
            for name in ("a", "b", "c" * 1000):
                await init(name, 60_000)
            with pytest.raises(Overloaded, match="max_transactional_ids"):
                await init("d", 60_000)
            assert (await init("a", 60_000))[1] == 1, "those that there are go on"
        async with running(tmp_path, max_transactional_ids=3, transactional_id_expiration_ms=1) as broker:
            await trio.sleep(0.002)
            assert await broker.transactions.expire(broker.now_ms() + 1000) == 3
            await broker.transactions.init_producer("d", 60_000)

    trio.run(main)


@pytest.mark.parametrize("way", ["ids", "groups", "partitions"])
def test_what_transactional_ids_take_is_counted_as_it_is(tmp_path: Path, way: str) -> None:
    """They never take more than the 256 KiB that they may take, and an ended transaction gives its part back."""
    wide = [TopicPartition("t", index) for index in range(200)]

    async def main() -> None:
        async with running(tmp_path, memory_bytes=MIB) as broker:
            await broker.create_topic("t", len(wide), {})
            coordinator, begun = broker.transactions, dict[str, tuple[int, int]]()

            async def begin(name: str) -> None:
                begun[name] = await coordinator.init_producer(name, 60_000)
                if way == "groups":
                    for at in range(50):
                        await coordinator.add_group(name, *begun[name], f"{at}-" + "g" * 900)
                elif way == "partitions":
                    await coordinator.add_partitions(name, *begun[name], wide)

            async def begin_many() -> None:
                for number in range(1000):
                    await begin(f"{number}-" + "x" * 900)

            with pytest.raises(Overloaded, match="a quarter of memory_bytes"):
                await begin_many()
            there = coordinator.list()
            taken = sum(each.memory for each in there)
            assert taken == coordinator._memory.total <= MIB // 4
            assert sum(_size(each) for each in there) <= taken
            if way != "ids":
                first = next(iter(begun))
                await coordinator.end(first, *begun[first], commit=True)
                await coordinator.add_group(first, *begun[first], "g")
        async with running(tmp_path, memory_bytes=MIB) as broker:
            coordinator = broker.transactions
            assert coordinator._memory.total == sum(each.memory for each in coordinator.list()) > 0

    trio.run(main)


def test_the_transactional_ids_of_one_user_leave_a_number_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, authorizer="acl", max_transactional_ids=4) as broker:
            coordinator = broker.transactions
            for user, name, allowed in (
                ("eve", "hers-1", True),
                ("eve", "hers-2", True),
                ("eve", "hers-3", False),
                ("bob", "his", True),
                ("eve", "hers-2", True),
                ("bob", "hers-2", True),  # from now on it is his
                ("eve", "hers-3", False),
            ):
                asks(user)
                with contextlib.nullcontext() if allowed else pytest.raises(Overloaded, match="one user has at most"):
                    await coordinator.init_producer(name, 60_000)
            assert len(coordinator.list()) == coordinator._number.total == 3
            coordinator._give_up(lambda name: True)
            assert coordinator._number.total == coordinator._memory.total == 0
            await coordinator.init_producer("hers-3", 60_000)

    trio.run(main)


def test_transactional_ids_that_begin_together_are_counted_while_they_wait_for_producer_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker gets a thousand of these at a time, and in a cluster that takes some ms."""
    new = ProducerIds.new

    async def later(ids: ProducerIds) -> int:
        await trio.sleep(0.01)
        return await new(ids)

    monkeypatch.setattr(ProducerIds, "new", later)

    async def main() -> None:
        async with running(tmp_path, authorizer="acl", max_transactional_ids=8) as broker:
            coordinator = broker.transactions
            asks("eve")

            async def begin(name: str) -> None:
                with contextlib.suppress(Overloaded):
                    await coordinator.init_producer(name, 60_000)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(begin, f"{number}")
            assert len(coordinator.list()) == coordinator._number.total == 4

    trio.run(main)


def test_the_transactional_ids_of_one_user_keep_no_other_from_a_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, authorizer="acl", memory_bytes=MIB) as broker:
            await broker.create_topic("t", 1, {})
            coordinator = broker.transactions
            asks("bob")
            his = await coordinator.init_producer("his", 60_000)
            asks("eve")
            for size in (900, 90, 1):
                with contextlib.suppress(Overloaded):
                    for number in range(1000):
                        await coordinator.init_producer(f"{number}-" + "x" * size, 60_000)
            asks("bob")
            await coordinator.add_partitions("his", *his, [TopicPartition("t", 0)])
            await coordinator.end("his", *his, commit=True)
            await coordinator.init_producer("his-too", 60_000)

    trio.run(main)


def _size(transaction: Transaction) -> int:
    """What a transactional id takes at least, by its names and partitions."""
    size = sum(map(sys.getsizeof, (transaction.name, *transaction.groups, *transaction.partitions)))
    return size + sys.getsizeof(transaction.groups) + sys.getsizeof(transaction.partitions)


def test_states_that_are_saved_at_once_are_counted_before_they_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MEMORY_SHARE", 64)

    async def main() -> None:
        async with running(tmp_path, memory_bytes=MIB, durability="fsync") as broker:
            refused = 0

            async def begin(name: str) -> None:
                nonlocal refused
                try:
                    await broker.transactions.init_producer(name, 60_000)
                except Overloaded:
                    refused += 1

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(begin, f"{number}")
            assert refused
            assert broker.transactions._memory.total <= 16 << 10

    trio.run(main)


def test_a_transaction_takes_no_long_name_of_a_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker:
            who = await broker.transactions.init_producer("x", 60_000)
            for name in (LONG, ""):
                with pytest.raises(Refused) as refused:
                    await broker.transactions.add_group("x", *who, name)
                assert refused.value.fault == Fault.INVALID_GROUP_ID
            await broker.transactions.add_group("x", *who, "g" * 1000)

    trio.run(main)


def test_long_names_of_groups_and_members_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker:
            assert (await join(broker, "g" * 1001)).fault == Fault.INVALID_GROUP_ID
            assert (await join(broker, "g", instance_id="i" * 250)).fault == Fault.INVALID_REQUEST
            assert (await join(broker, "g", protocol_type=LONG)).fault == Fault.INCONSISTENT_GROUP_PROTOCOL
            for beat in (
                Beat(LONG, 0, rebalance_ms=1, topics=()),
                Beat("m", 0, instance_id=LONG, rebalance_ms=1, topics=()),
                Beat("m", 0, rack=LONG, rebalance_ms=1, topics=()),
            ):
                found = await broker.kafka_groups.beat("g", beat).wait()
                assert isinstance(found, KrappyError)
            assert not broker.kafka_groups.groups

    trio.run(main)


@pytest.mark.parametrize("way", ["one group", "a group each", "never joined", "heartbeats", "protocols"])
def test_what_groups_take_is_counted_as_it_is(tmp_path: Path, way: str) -> None:
    """Groups never take more than the 1 MiB that they may take, whatever the memory is spent on.

    What an empty group takes is counted after the check, so the last one may go beyond by that.
    """

    async def main() -> None:
        async with running(tmp_path, memory_bytes=4 * MIB, group_initial_rebalance_delay_ms=0) as broker:
            groups = broker.kafka_groups
            host, refused = "h" * 200, 0
            async with trio.open_nursery() as nursery:
                for number in range(6000):
                    if refused == 100:
                        break
                    name = "g" if way == "one group" else f"{number}-{'g' * 990}"
                    client = f"{number}-" + "c" * 240
                    if way == "heartbeats":
                        topics = tuple(f"{number}-{at}" for at in range(50))
                        beat = Beat(f"m{number}", 0, None, None, 60_000, topics, client_id=client, client_host=host)
                        found = await groups.beat(name, beat).wait()
                        refused += isinstance(found, KrappyError)
                        continue
                    protocols = tuple((f"{at}", b"") for at in range(200 if way == "protocols" else 1))
                    ask = Join("", f"i{number}", "consumer", protocols, 600_000, 60_000, client, host)
                    if way == "never joined":
                        ask = ask._replace(instance_id=None, id_first=True)
                    later = groups.join(name, ask)
                    await trio.lowlevel.checkpoint()
                    refused += later.done and (await later.wait()).fault == Fault.GROUP_MAX_SIZE_REACHED
                nursery.cancel_scope.cancel()
            assert refused == 100
            counted = sum(group.memory for group in groups.groups.values())
            assert counted == groups._memory.total <= MIB + EACH_GROUP
            for group in groups.groups.values():
                assert group.memory >= EACH_GROUP + sys.getsizeof(group.name)

    trio.run(main)


def test_groups_of_each_protocol_are_bounded_in_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, max_groups=3) as broker:
            await broker.create_topic("t", 1, {})
            for name in ("a", "b"):
                await broker.groups.commit(name, [("t", 0, 0)])
            member = await broker.groups.join("c", "client", ["t"])
            with pytest.raises(Overloaded, match="max_groups"):
                await broker.groups.commit("d", [("t", 0, 0)])
            with pytest.raises(Overloaded, match="max_groups"):
                await broker.groups.join("d", "client", ["t"])
            await broker.groups.commit("a", [("t", 0, 0)])
            member.close()
            await broker.groups.delete("b")
            await broker.groups.commit("d", [("t", 0, 0)])
            for number in range(4):
                joined = await join(broker, f"k{number}", id_first=True)
                full = number == 3
                assert joined.fault == (Fault.COORDINATOR_NOT_AVAILABLE if full else Fault.MEMBER_ID_REQUIRED)

    trio.run(main)


def test_the_kafka_groups_of_one_user_leave_a_number_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, authorizer="acl", max_groups=4) as broker:
            for user, name, fault in (
                ("eve", "hers-1", Fault.MEMBER_ID_REQUIRED),
                ("eve", "hers-2", Fault.MEMBER_ID_REQUIRED),
                ("eve", "hers-3", Fault.COORDINATOR_NOT_AVAILABLE),
                ("bob", "his", Fault.MEMBER_ID_REQUIRED),
                ("eve", "hers-2", Fault.MEMBER_ID_REQUIRED),
            ):
                asks(user)
                assert (await join(broker, name, id_first=True)).fault == fault
            for name in ("hers-1", "hers-2"):
                broker.kafka_groups.forget(broker.kafka_groups.groups[name])
            assert (await join(broker, "hers-3", id_first=True)).fault == Fault.MEMBER_ID_REQUIRED

    trio.run(main)


def test_positions_of_native_groups_are_bounded_by_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, memory_bytes=MIB) as broker:
            await broker.create_topic("t", 50, {})
            await broker.create_topic("u", 2, {})
            everywhere = [("t", index, 0) for index in range(50)]
            for number in range(7):
                await broker.groups.commit(f"g{number}", everywhere)
            with pytest.raises(Overloaded, match="7 groups with 350 positions; memory_bytes allows 403 together"):
                await broker.groups.commit("g7", everywhere)
            assert broker.groups.room.positions == 350
            await broker.groups.commit("g0", everywhere)  # positions that are there may be committed again
            with pytest.raises(Overloaded):
                await broker.groups.join("j", "client", ["t"])
            await broker.groups.delete("g0")
            await broker.groups.commit("h", [*everywhere, *everywhere])
            await broker.groups.delete("h")
            member = await broker.groups.join("j", "client", ["t"])
            assert broker.groups.room.positions == 350
            await broker.delete_topic("t")
            member.close()
            assert broker.groups.room.positions == 0
        async with running(tmp_path, memory_bytes=MIB) as broker:
            await broker.groups.commit("g1", [("u", 0, 0), ("u", 1, 0)])
            assert broker.groups.room.positions == 2

    trio.run(main)


@pytest.mark.parametrize("way", ["commit", "join", "reset"])
def test_the_native_groups_of_one_user_keep_no_positions_of_others_out(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        async with running(tmp_path, authorizer="acl", memory_bytes=MIB) as broker:
            await broker.create_topic("t", 50, {})
            asks("bob")
            await broker.groups.commit("his", [("t", 0, 0)])
            asks("eve")
            for many in (50, 1):
                with contextlib.suppress(Overloaded):
                    for number in range(403):
                        name = f"{many}-{number}"
                        if way == "join":
                            await broker.groups.join(name, "client", ["t"])
                        elif way == "commit":
                            await broker.groups.commit(name, [("t", index, 0) for index in range(many)])
                        else:
                            await broker.groups.commit(name, [("t", 0, 0)])
                            await broker.groups.reset(name, "t", range(many), "earliest", None)
            asks("bob")
            await broker.groups.commit("his", [("t", index, 0) for index in range(50)])
            await broker.groups.join("his-too", "client", ["t"])

    trio.run(main)


def test_a_user_does_not_answer_for_positions_of_others_in_a_native_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, authorizer="acl", memory_bytes=MIB) as broker:
            await broker.create_topic("t", 500, {})
            for _ in range(3):
                asks("eve")
                with contextlib.suppress(Overloaded):
                    for index in range(1, 500):
                        await broker.groups.commit("shared", [("t", index, 0)])
                asks("bob")
                await broker.groups.commit("shared", [("t", index, 0) for index in range(10)])
            await broker.groups.commit("his", [("t", index, 0) for index in range(50)])

    trio.run(main)


def test_the_native_groups_of_one_user_leave_a_number_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, authorizer="acl", max_groups=4) as broker:
            await broker.create_topic("t", 1, {})
            await broker.groups.commit("loaded", [("t", 0, 0)])
        async with running(tmp_path, authorizer="acl", max_groups=4) as broker:
            asks("eve")
            await broker.groups.commit("hers", [("t", 0, 0)])
            with pytest.raises(Overloaded, match="max_groups"):
                await broker.groups.commit("hers-too", [("t", 0, 0)])
            asks("bob")
            await broker.groups.commit("his", [("t", 0, 0)])
            await broker.groups.delete("hers")
            asks("eve")
            await broker.groups.commit("hers-too", [("t", 0, 0)])

    trio.run(main)


def test_a_native_group_that_nobody_uses_gives_way_to_a_new_one(tmp_path: Path) -> None:
    """The group that was unused for longest gives way, but only if that is long enough, and only if there is
    no room."""
    told: list[object] = []
    now = 0

    def report(event: str, **facts: object) -> None:
        if event == "group_forgotten":
            told.append(facts["group"])

    async def main() -> None:
        nonlocal now
        async with running(tmp_path, report, max_groups=3, offsets_retention_ms=1000) as broker:
            groups = broker.groups
            groups.now_ms = lambda: now  # type: ignore[method-assign]
            await broker.create_topic("t", 1, {})
            for name in ("a", "b"):
                await groups.commit(name, [("t", 0, 0)])
            member = await groups.join("c", "client", ["t"])
            now = 500
            await groups.commit("a", [("t", 0, 0)])
            now = 1499
            assert not told, "there is room"
            await groups.commit("d", [("t", 0, 0)])
            assert told == ["b"]
            with pytest.raises(Overloaded, match="max_groups"):
                await groups.commit("e", [("t", 0, 0)])
            now = 1500
            await groups.join("e", "client", ["t"])
            assert told == ["b", "a"]
            now = 2498
            member.close()
            with pytest.raises(Overloaded, match="max_groups"):
                await groups.commit("f", [("t", 0, 0)])
            now = 2499
            await groups.commit("f", [("t", 0, 0)])
            assert told == ["b", "a", "d"]
        async with running(tmp_path) as broker:
            assert sorted(broker.groups.sizes()) == ["c", "e", "f"]

    trio.run(main)


def test_backups_that_are_held_are_bounded_in_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker:
            await broker.create_topic("t", 1, {})
            held = [await broker.hold_backup() for _ in range(backup.MOST_HELD)]
            with pytest.raises(Overloaded, match="4 backups are held"):
                await broker.hold_backup()
            held[0].close()
            with trio.fail_after(30):
                while broker.decisions.holds == backup.MOST_HELD:
                    await trio.sleep(0.01)
            held[0] = await broker.hold_backup()
            for each in held:
                each.close()
            with trio.fail_after(30):
                while broker.decisions.holds:
                    await trio.sleep(0.01)

    trio.run(main)
