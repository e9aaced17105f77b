"""Groups of a broker whose log loses its end, as by an unclean election; and those of one that is only started anew."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import trio_test

from krappy import errors
from krappy.broker.broker import LocalBroker
from krappy.broker.groups import keeping
from krappy.broker.groups.keeping import LocalGroups
from krappy.broker.partition.partition import Partition
from krappy.broker.partition.replica import Standing
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.ports import StoredAt
from krappy.store.groups import GroupStore
from krappy.waiting import Later
from tests.broker.engine import events, offsets, publish, read_all, running, until

ALL = (1000, 1 << 20)  # records and bytes of a poll that takes what there is
NO_VIEW = {"view.enable": "false"}
SELF, OTHER = 0, 7
KEYS: list[bytes | None] = [b"a", b"b", b"c", b"a", b"b", b"c", b"a", b"b", b"c", b"a"]


async def lose(partition: Partition, end: int) -> None:
    """Another broker, which has nothing from `end` on, leads; this one follows it, and then leads again."""
    epoch, version, me = partition.epoch, partition.state_version, partition.leader
    await partition.take(PartitionState(OTHER, epoch + 1), version + 1, Role.FOLLOWER, me)
    await trio.to_thread.run_sync(partition.log.truncate, end)
    partition.stand(Standing.whole(partition.log))
    await partition.take(PartitionState(me, epoch + 2, isr=(me,)), version + 2, Role.LEADER, me)


async def filled(broker: LocalBroker) -> Partition:
    """A topic's only partition, with two batches of five events."""
    partition = (await broker.create_topic("t", 1, NO_VIEW))[0].led(0)
    await publish(partition, 5)
    await publish(partition, 5)
    return partition


@trio_test
@pytest.mark.parametrize("order", ["none", "key"])
async def test_a_group_that_looks_late_gets_all_that_came_in_place_of_what_was_lost(tmp_path: Path, order: str) -> None:
    """It gets events that it had acknowledged out of order, too, and those that it had not; their deliveries count
    anew."""
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, NO_VIEW))[0].led(0)
        await publish(partition, 5, KEYS[:5])
        await publish(partition, 5, KEYS[5:])
        before = partition.epoch
        member = await broker.groups.join("g", "a", ["t"], order=order)
        other = await broker.groups.join("g", "b", ["t"], order=order)
        assert offsets(await member.poll(*ALL)) == list(range(10))
        await member.ack([("t", 0, 0, 1), ("t", 0, 3, 6), ("t", 0, 8, 8)]).wait()
        await lose(partition, 5)
        await publish(partition, 10, KEYS)
        await member.ack([("t", 0, 2, 2, before), ("t", 0, 7, 7, before)]).wait()  # before the group has looked
        got = await other.poll(*ALL)
        assert offsets(got) == list(range(5, 15))
        assert {lease[4] for lease in got.leases} == {1}
        await other.ack([("t", 0, 5, 14, partition.epoch)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 15)]


@trio_test
@pytest.mark.parametrize("order", ["none", "key"])
async def test_a_damaged_leader_epoch_is_no_history(tmp_path: Path, order: str) -> None:
    """No checksum covers it. What comes behind that batch is acknowledged as ever, and not delivered again."""
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, NO_VIEW))[0].led(0)
        for _ in range(3):
            await publish(partition, 5)
        [segment] = (tmp_path / "topics" / "t-0").glob("*.log")
        size = segment.stat().st_size // 3
        with segment.open("r+b") as file:
            file.seek(size + 12)
            file.write((7777).to_bytes(4, "big"))
        member = await broker.groups.join("g", "a", ["t"], order=order)
        got: list[int] = []
        while (polled := await member.poll(*ALL)).leases:
            got += offsets(polled)
        assert got == list(range(15))
        await member.ack([("t", 0, 0, 4, partition.epoch), ("t", 0, 10, 14, partition.epoch)]).wait()
        with pytest.raises(errors.LeaseLost):
            await member.ack([("t", 0, 5, 9, 7777)]).wait()
        await member.ack([("t", 0, 5, 9, partition.epoch)]).wait()
        epoch = partition.epoch
        await partition.take(PartitionState(SELF, epoch + 1, isr=(SELF,)), 99, Role.LEADER, SELF)
        assert broker.groups.positions("g") == [("t", 0, 15)]
        assert offsets(await member.poll(*ALL)) == []


@trio_test
async def test_an_ack_names_which_event_it_means(tmp_path: Path) -> None:
    """Even if the same member has, or had, the event that came in place of the lost one."""
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        before = partition.epoch
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await lose(partition, 5)
        await publish(partition, 20)
        assert offsets(await member.poll(*ALL)) == list(range(5, 25))
        late = [("t", 0, 0, 9, before)]
        for _ in range(2):
            with pytest.raises(errors.LeaseLost) as lost:
                await member.ack(late).wait()
            assert lost.value.details["lost"] == [["t", 0, 5, 9]]
            member.close()
            member = await broker.groups.join("g", "a", ["t"])
        assert offsets(await member.poll(*ALL)) == list(range(5, 25))
        await member.ack([("t", 0, 5, 24, partition.epoch)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 25)]


@trio_test
async def test_acks_that_name_no_epoch_are_as_before(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await lose(partition, 5)
        await publish(partition, 5)
        await member.ack([("t", 0, 0, 7)]).wait()  # the group has not looked yet
        assert offsets(await member.poll(*ALL)) == list(range(5, 10))
        await member.ack([("t", 0, 5, 9), ("t", 0, 5, 9, -1)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 10)]


@trio_test
@pytest.mark.parametrize("ahead", [False, True])
async def test_what_was_read_before_an_election_is_leased_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """Neither a read that is under way then, nor what an earlier poll has read ahead."""
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        member = await broker.groups.join("g", "a", ["t"])
        if ahead:
            assert offsets(await member.poll(2, 1 << 20)) == [0, 1]
            await lose(partition, 5)
            await publish(partition, 20)
        else:
            read = partition.read

            async def slow(*args: Any, **more: Any) -> Any:
                monkeypatch.undo()
                span = await read(*args, **more)
                await lose(partition, 5)
                await publish(partition, 20)
                return span

            def cold(*args: Any, **more: Any) -> Any:
                raise BlockingIOError

            monkeypatch.setattr(Partition, "read_now", cold)
            monkeypatch.setattr(Partition, "read", lambda self, *args, **more: slow(*args, **more))
            read = partial(read.__func__, partition)  # type: ignore[attr-defined]
        begun = 2 if ahead else 0
        got = await member.poll(*ALL, 60_000)
        assert offsets(got) == list(range(begun, 25))
        values = [each.value for each in events(got)]
        assert values[5 - begun :] == [b"%d" % n for n in range(20)]


@trio_test
@pytest.mark.parametrize("waits", [5, 7])
async def test_a_poll_while_the_log_is_being_cut_finds_nothing_there(tmp_path: Path, waits: int) -> None:
    """While a follower's log is cut, the log has its new end before the high watermark has. An event behind that end,
    which is to be delivered again, is not read."""
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await member.ack([("t", 0, 0, waits - 1), ("t", 0, waits + 1, 9)]).wait()
        member.nack([("t", 0, waits, waits)])
        await partition.take(PartitionState(OTHER, partition.epoch + 1), 9, Role.FOLLOWER, SELF)
        await trio.to_thread.run_sync(partition.log.truncate, 5)
        assert partition.high_watermark == 10
        assert offsets(await member.poll(*ALL)) == []
        partition.stand(Standing.whole(partition.log))
        await partition.take(PartitionState(SELF, partition.epoch + 1, isr=(SELF,)), 10, Role.LEADER, SELF)
        await publish(partition, 2)
        assert offsets(await member.poll(*ALL)) == [5, 6]


@trio_test
async def test_no_event_is_dead_since_a_lost_one_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lost event was read to be published to the dead-letter topic, which takes it. By then another event has its
    offset."""
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        assert offsets(await member.poll(1, 1 << 20)) == [0]
        await member.ack([("t", 0, 0, 0)]).wait()
        publish_record = Partition.publish_record
        elections: list[int] = []

        def slow(self: Partition, *args: Any, **more: Any) -> Later[StoredAt]:
            later = publish_record(self, *args, **more)
            if elections:
                return later
            elections.append(1)
            late: Later[StoredAt] = Later()

            async def run() -> None:
                await lose(partition, 5)
                await publish(partition, 10)
                again = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
                while 6 not in (found := offsets(await again.poll(1, 1 << 20))):
                    await again.ack([("t", 0, at, at) for at in found]).wait()
                again.close()  # so the new event at this offset is dead, too
                late.resolve(await later.wait())

            broker.groups._runtime.spawn(run)
            return late

        for offset in range(1, 6):
            assert offsets(await member.poll(1, 1 << 20)) == [offset]
            await member.ack([("t", 0, offset, offset)]).wait()
        assert offsets(await member.poll(1, 1 << 20)) == [6]
        monkeypatch.setattr(Partition, "publish_record", slow)
        member.close()
        await until(lambda: elections and "t.g.dead" in broker.groups._runtime.topics)
        target = broker.topic("t.g.dead").led(0)
        await until(lambda: target.high_watermark >= 2)
        origins = [dict(each.headers) for each in await read_all(target)]
        assert [each["krappy-origin-offset"] for each in origins] == [b"6", b"6"], "the lost one, and the new one"


@trio_test
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("order", ["none", "key"])
async def test_a_restart_delivers_nothing_again_but_what_was_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, kept: bool
) -> None:
    """The leader epoch rises at each start, also where nothing is written, where compaction removes all events of an
    epoch, and where those of the first ones are deleted. `kept`: positions have epochs after the start, as in a
    cluster."""
    if kept:
        monkeypatch.setattr(LocalGroups, "keeps_epochs", True)
        monkeypatch.setattr(keeping, "parted", lambda state: (b"", state))
    reports: list[str] = []
    left: dict[int, int] = {}  # offsets that were not acknowledged, and how often they were delivered
    for number in range(9):
        report = lambda event, **facts: reports.append(event)  # noqa: E731
        async with running(tmp_path, report) as broker:
            if number == 0:
                await broker.create_topic(
                    "t", 1, {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}
                )
            partition = broker.topic("t").led(0)
            first = partition.log.end_offset
            if number % 3 != 2:
                others = [b"%d" % each for each in range(number if number % 4 == 3 else 0)]
                await publish(partition, 3 + len(others), [b"a", b"b", *others, b"%d" % number])
            if number % 4 == 3:
                await broker.housekeeper.clean(partition, broker.now_ms())
                there = {each.offset for each in await read_all(partition)}
                assert min(there) == first, "no event of an earlier epoch is left"
                left = {}
            [*known] = partition.epochs.known
            assert len(known) > 1 or not number, "nor is an epoch forgotten"
            member = await broker.groups.join("g", "a", ["t"], order=order)
            delivered: dict[int, int] = {}
            while (got := await member.poll(*ALL)).leases:  # a segment at a time
                for _, _, low, high, deliveries in got.leases:
                    delivered |= dict.fromkeys(range(low, high + 1), deliveries)
            fresh = dict.fromkeys(range(first, partition.log.end_offset), 1)
            again = {offset: count + 1 for offset, count in left.items() if offset >= partition.start_offset}
            if order == "none":
                assert delivered == again | fresh
            else:  # what waits behind an earlier event of its key comes later
                assert delivered.items() <= (again | fresh).items()
            last = max(delivered)
            rest = [offset for offset in delivered if offset != last]
            await member.ack([("t", 0, offset, offset, -1) for offset in rest]).wait()
            left = {last: delivered[last]}
            if number == 6:
                await partition.delete_records(min(left))
            partition.log.roll()
    assert "group_ahead_of_log" not in reports
    assert "dead_letter_failed" not in reports


@trio_test
async def test_a_group_that_is_moved_goes_back_too(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        member.close()
        await broker.groups.reset("g", None, None, "latest", None)
        await broker.groups.join("fresh", "a", ["t"], start="latest")
        await broker.groups.commit("positions", [("t", 0, 8)])
        await lose(partition, 5)
        await publish(partition, 10)
        for group in ("g", "fresh"):
            member = await broker.groups.join(group, "a", ["t"])
            assert offsets(await member.poll(*ALL)) == list(range(5, 15))
        assert broker.groups.describe("positions")["partitions"][0]["floor"] == 5


@trio_test
async def test_a_state_of_an_earlier_version_has_no_epoch_and_gets_one(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await filled(broker)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await member.ack([("t", 0, 0, 7)]).wait()
        group = broker.groups._groups["g"]
        state = group.shared["t", 0].leases.dump()
        old = [1, 10, 0, 8, 2, 1, 0]
        assert state == [3, 3, 0, partition.epoch, 0, *old]
        member.close()
        await lose(partition, 5)
        shared = group.shared["t", 0]
        shared.leases = group.load_leases("t", old, 0)
        shared.trim()
        assert (shared.leases.frontier, shared.leases.lineage.last) == (5, partition.epoch - 2)
        await publish(partition, 10)
        shared.leases = group.load_leases("t", old, 0)
        shared.trim()
        assert (shared.leases.frontier, shared.leases.lineage.last) == (10, partition.epoch), (
            "as before: it is believed"
        )


@trio_test
async def test_a_broker_alone_writes_what_earlier_versions_can_read(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await publish((await broker.create_topic("t", 1, NO_VIEW))[0].led(0), 5)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await member.ack([("t", 0, 0, 4)]).wait()
        [packed] = GroupStore(broker.groups._runtime.meta).load_all()["g"].states.values()
        assert msgpack.unpackb(packed) == [1, 5, 0]


@trio_test
async def test_an_offset_is_not_named_in_very_many_epochs(tmp_path: Path) -> None:
    """Each epoch is looked for in thousands of leases."""
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, NO_VIEW))[0].led(0)
        await publish(partition, 10)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        with pytest.raises(errors.InvalidRequest, match="offset 9 of t-0 in more than 8 epochs"):
            member.ack([("t", 0, at, 9 + at, epoch) for epoch, at in enumerate([0, 1, 2, 3, 4, 5, 6, 7, 9])])
        assert member.group.shared["t", 0].leases.unsettled == 10
        with pytest.raises(errors.LeaseLost):
            await member.ack([("t", 0, 0, 9, epoch) for epoch in range(8)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 10)]
