"""Shared groups on a real broker and real files, without a server."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy import errors
from krappy.broker.groups import dead_letters
from krappy.broker.groups import member as member_module
from krappy.broker.partition.partition import Partition
from krappy.ports import GroupPolled, StoredAt
from krappy.records import batch
from krappy.types import Record
from krappy.waiting import Later
from tests.broker.engine import as_killed, events, offsets, publish, ranges, read_all, running, until

ALL = (1000, 1 << 20)  # records and bytes of a poll that takes what there is
LONG_MS = 60_000  # ms; no test waits for so long


@trio_test
async def test_members_share_a_partition_and_two_groups_do_not(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 10)
        one = await broker.groups.join("work", "a", ["t"])
        two = await broker.groups.join("work", "b", ["t"])
        other = await broker.groups.join("else", "c", ["t"])
        assert (one.name, two.name, other.name) == ("work_0", "work_1", "else_0")
        assert offsets(await one.poll(4, 1 << 20)) == [0, 1, 2, 3]
        assert offsets(await two.poll(*ALL)) == [4, 5, 6, 7, 8, 9]
        assert offsets(await one.poll(*ALL)) == []
        assert offsets(await other.poll(*ALL)) == list(range(10))


@trio_test
async def test_polls_take_partitions_in_turn(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 3, {})
        for partition in topic.local.values():
            for _ in range(2):
                await publish(partition, 10)
        member = await broker.groups.join("g", "a", ["t"])
        first = [(await member.poll(10, 1 << 20)).leases[0][1] for _ in range(3)]
        assert sorted(first) == [0, 1, 2]
        assert sorted(lease[1] for lease in (await member.poll(*ALL)).leases) == [0, 1, 2]


@trio_test
@pytest.mark.parametrize("left", ["closed", "cancelled"])
async def test_what_is_acknowledged_in_parts_is_all_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """The member's connection ends after the first part. Meanwhile nobody gets its events, and when all parts are
    acknowledged, its other leases are free."""
    monkeypatch.setattr(member_module, "AT_ONCE", 10)
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 100)
        member, other = [await broker.groups.join("g", client, ["t"]) for client in "ab"]
        await member.poll(*ALL)
        parts, given = 0, list[int]()

        async def pause() -> None:
            nonlocal parts
            parts += 1
            if parts == 1:
                scope.cancel() if left == "cancelled" else None
                member.close()
            await trio.lowlevel.checkpoint()
            given.extend(offsets(await other.poll(*ALL)))

        with trio.CancelScope() as scope:
            await member.in_parts([("t", 0, at, at) for at in range(0, 100, 2)] * 3, member.ack, pause)
        assert (parts, given) == (5, [])
        assert offsets(await other.poll(*ALL)) == list(range(1, 100, 2))
        await other.ack([("t", 0, 0, 99)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 100)]
        assert [each["name"] for each in broker.groups.describe("g")["members"]] == [other.name]


@trio_test
async def test_what_is_lost_in_parts_is_told_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "AT_ONCE", 2)
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 20)
        member, other = [await broker.groups.join("g", client, ["t"]) for client in "ab"]
        await member.poll(10, 1 << 20)
        await other.poll(10, 1 << 20)
        asked = [("t", 0, at, at) for at in range(0, 20, 2)]
        for settle in (member.ack, partial(member.nack, delay_ms=LONG_MS), partial(member.extend, lease_ms=LONG_MS)):
            with pytest.raises(errors.InvalidRequest):
                await member.in_parts([*asked, ("t", 0, 9, 8)], settle, trio.lowlevel.checkpoint)
            assert broker.groups.describe("g")["members"][0]["leased"] == 10, "nothing is done"
        for settle in (partial(member.extend, lease_ms=LONG_MS), member.ack):
            with pytest.raises(errors.LeaseLost) as lost:
                await member.in_parts(asked, settle, trio.lowlevel.checkpoint)
            assert lost.value.details["lost"] == [["t", 0, at, at] for at in range(10, 20, 2)]
        assert broker.groups.describe("g")["members"][0]["leased"] == 5


@trio_test
async def test_an_acknowledged_event_is_settled_even_if_the_broker_dies_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "a", durability="fsync") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 10)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(6, 1 << 20)
        await member.ack([("t", 0, 0, 1), ("t", 0, 3, 3)]).wait()
        as_killed(tmp_path / "a", tmp_path / "b")
        await member.ack([("t", 0, 2, 2)]).wait()
    async with running(tmp_path / "b") as broker:
        assert broker.groups.positions("g") == [("t", 0, 2)]
        member = await broker.groups.join("g", "a", ["t"])
        again = events(await member.poll(*ALL))
        assert [(got.offset, got.deliveries) for got in again[:3]] == [(2, 2), (4, 2), (5, 2)]
        assert [(got.offset, got.deliveries) for got in again[3:]] == [(offset, 1) for offset in range(6, 10)]
    async with running(tmp_path / "a") as broker:
        assert broker.groups.positions("g") == [("t", 0, 4)]


@trio_test
async def test_a_lost_connection_gives_its_events_to_the_one_who_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 3)
        dies = await broker.groups.join("g", "a", ["t"])
        waits = await broker.groups.join("g", "b", ["t"])
        await dies.poll(*ALL)
        got: list[GroupPolled] = []

        async def wait() -> None:
            got.append(await waits.poll(*ALL, LONG_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not got
            dies.close()
        assert [(event.offset, event.deliveries) for event in events(got[0])] == [(0, 2), (1, 2), (2, 2)]
        with pytest.raises(errors.LeaseLost):
            await dies.ack([("t", 0, 0, 0)]).wait()
        assert (await broker.groups.join("g", "c", ["t"])).name == "g_0"


@trio_test
async def test_what_comes_later_wakes_a_waiting_poll(tmp_path: Path) -> None:
    """An event, a lease that ends, a delay that ends, and a key that is free again: each wakes the poll by itself."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        holder = await broker.groups.join("g", "a", ["t"], order="key", lease_ms=100)
        waiter = await broker.groups.join("g", "b", ["t"], order="key")
        got: list[tuple[int, int]] = []

        async def wait() -> None:
            got.extend((event.offset, event.deliveries) for event in events(await waiter.poll(1, 1 << 20, LONG_MS)))

        async with trio.open_nursery() as nursery:  # an event
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await publish(topic.led(0), 1, [b"k"])
        async with trio.open_nursery() as nursery:  # a key
            await publish(topic.led(0), 1, [b"k"])
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await waiter.ack([("t", 0, 0, 0)]).wait()
        waiter.nack([("t", 0, 1, 1)], 50)
        await wait()  # a delay
        waiter.nack([("t", 0, 1, 1)])
        assert offsets(await holder.poll(*ALL)) == [1]
        await wait()  # a lease
        assert got == [(0, 1), (1, 1), (1, 2), (1, 4)]


@trio_test
async def test_one_event_wakes_one_of_many_and_none_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        members = [await broker.groups.join("g", "a", ["t"]) for _ in range(300)]
        looks: list[Any] = []
        in_turn = members[0].group.in_turn

        def counting(topics: tuple[str, ...]) -> Any:
            looks.append(topics)
            return in_turn(topics)

        got: list[int] = []

        async def wait(member: Any) -> None:
            got.extend(offsets(await member.poll(1, 1 << 20, LONG_MS)))

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(wait, member)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(members[0].group, "in_turn", counting)
            await publish(topic.led(0), 1)
            await until(lambda: len(got) == 1)
            assert len(looks) <= 2
            await publish(topic.led(0), 299)
        assert sorted(got) == list(range(300))
        assert len(looks) <= 320


@trio_test
async def test_a_woken_poll_that_is_cancelled_passes_its_turn_on(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        scope = trio.CancelScope()
        moved = topic.led(0).moved
        moved.subscribe(scope.cancel)  # before the group does: it is cancelled first, and then woken all the same
        first = await broker.groups.join("g", "a", ["t"])
        second = await broker.groups.join("g", "b", ["t"])
        got: list[int] = []

        async def dies() -> None:
            with scope:
                await first.poll(*ALL, LONG_MS)
            assert scope.cancelled_caught
            moved.unsubscribe(scope.cancel)

        async def wait() -> None:
            got.extend(offsets(await second.poll(*ALL, LONG_MS)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dies)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await publish(topic.led(0), 1)
        assert got == [0]


@trio_test
async def test_the_dead_are_buried_as_they_were_with_where_they_came_from(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {"retention.ms": 3_600_000})
        headers = [(("trace", b"1"), ("empty", None)), (), ()]
        await publish(topic.led(1), 3, [b"k", None, b"k"], headers=headers)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        await member.poll(*ALL)
        await member.ack([("t", 1, 1, 1)]).wait()
        member.nack([("t", 1, 0, 2)])
        await until(lambda: broker.groups.positions("g")[1] == ("t", 1, 3))
        dead = broker.topic("t.g.dead")
        assert len(dead.local) == 1
        assert dead.config.retention_ms is None
        first, second = await read_all(dead.led(0))
        assert (first.key, first.value, first.timestamp) == (b"k", b"0", 1_000)
        assert first.headers[:2] == headers[0]
        assert dict(first.headers[2:]) == {
            "krappy-origin-topic": b"t",
            "krappy-origin-partition": b"1",
            "krappy-origin-offset": b"0",
            "krappy-origin-group": b"g",
            "krappy-origin-deliveries": b"1",
        }
        assert second.value == b"2"
        assert broker.groups.describe("g")["partitions"][1]["dead"] == 2
        assert offsets(await member.poll(*ALL)) == []
        with pytest.raises(errors.InvalidRequest):
            await broker.groups.join("h", "a", ["t"], dead_letter="t")
        with pytest.raises(errors.InvalidTopic):
            await broker.groups.join("h/i", "a", ["t"])
        await broker.groups.join("h/i", "a", ["t"], dead_letter="graveyard")


@pytest.mark.parametrize("size", [1, 900_000])
@trio_test
async def test_the_dead_are_buried_whatever_their_timestamps(tmp_path: Path, size: int) -> None:
    """These events were accepted once, so the limits of the dead-letter topic for producers do not apply to them."""
    far = 2**60
    async with running(tmp_path, log_message_timestamp_after_max_ms=0, log_message_timestamp_before_max_ms=0) as broker:
        given = {"message.timestamp.after.max.ms": 2**63 - 1, "message.timestamp.before.max.ms": 2**63 - 1}
        topic, _ = await broker.create_topic("t", 1, given)
        for time in (1_000, far):
            await topic.led(0).publish(batch.encode([b"k"], [b"v" * size], timestamps=time)).wait()
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        leased: set[int] = set()
        while len(leased) < 2:
            with trio.fail_after(60):
                leased |= set(offsets(await member.poll(*ALL)))
        member.nack([("t", 0, 0, 1)])
        await until(lambda: broker.groups.positions("g") == [("t", 0, 2)])
        dead = broker.topic("t.g.dead").led(0)
        assert [event.timestamp for event in await read_all(dead)] == [1_000, far]
        with pytest.raises(errors.InvalidTimestamp):
            dead.publish(batch.encode([b"k"], [b"v"], timestamps=far))


@trio_test
async def test_the_dead_of_groups_with_like_names_are_buried_all_the_same(tmp_path: Path) -> None:
    """Also though nobody may create two topics whose names differ in dots and underscores alone."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 1)
        for group in ("g.x", "g_x"):
            member = await broker.groups.join(group, "a", ["t"], max_deliveries=1)
            await member.poll(*ALL)
            member.nack([("t", 0, 0, 0)])
            await until(lambda group=group: broker.groups.positions(group) == [("t", 0, 1)])
        assert {"t.g.x.dead", "t.g_x.dead"} <= set(broker.topics)
        with pytest.raises(errors.InvalidTopic):
            await broker.create_topic("t_g.x.dead", 1, {})


@trio_test
async def test_the_dead_wait_for_a_topic_that_takes_them(tmp_path: Path) -> None:
    """An event that the dead-letter topic refuses is neither lost nor settled, also after a restart."""
    reports: list[str] = []

    def report(event: str, **facts: Any) -> None:
        reports.append(event)

    async with running(tmp_path, report) as broker:
        await broker.create_topic("graveyard", 1, {"cleanup.policy": "compact"})  # refuses events without a key
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 2)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1, dead_letter="graveyard")
        await member.poll(*ALL)
        await member.ack([("t", 0, 1, 1)]).wait()
        member.close()
        await until(lambda: "dead_letter_failed" in reports)
        assert broker.groups.positions("g") == [("t", 0, 0)]
    async with running(tmp_path, report) as broker:
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1, dead_letter="graveyard2")
        await until(lambda: broker.groups.positions("g") == [("t", 0, 2)])
        assert [got.value for got in await read_all(broker.topic("graveyard2").led(0))] == [b"0"]


@trio_test
@pytest.mark.parametrize("refused", ["at once", "by the disk"])
async def test_one_that_its_dead_letter_topic_refuses_holds_up_no_other(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are buried once each, however often burying is tried; also those beyond what is read at a time."""
    monkeypatch.setattr(dead_letters, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(dead_letters, "AT_A_TIME", 2)
    reports: list[str] = []

    def report(event: str, **facts: Any) -> None:
        reports.append(event)

    async with running(tmp_path, report) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        graveyard, _ = await broker.create_topic("t.g.dead", 1, {})
        take = graveyard.led(0).publish_record

        def refuse(record: Record, **more: Any) -> Later[StoredAt]:
            if record.value != b"1":
                return take(record, **more)
            if refused == "at once":
                raise errors.RecordTooLarge("too large")
            later: Later[StoredAt] = Later()
            later.reject(errors.StorageError("no room"))
            return later

        monkeypatch.setattr(graveyard.led(0), "publish_record", refuse)
        await publish(topic.led(0), 3)
        for _ in range(3):
            await publish(topic.led(0), 3)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        while polled := ranges(await member.poll(*ALL)):
            member.nack(polled)
        await until(lambda: reports.count("dead_letter_failed") > 5)
        dead = [got.value for got in await read_all(graveyard.led(0))]
        assert dead == [b"0", b"2"] * 4
        assert broker.groups.describe("g")["partitions"][0]["lag"] == 4
        monkeypatch.setattr(graveyard.led(0), "publish_record", take)
        await until(lambda: broker.groups.positions("g") == [("t", 0, 12)])
        assert [got.value for got in await read_all(graveyard.led(0))] == dead + [b"1"] * 4


@trio_test
async def test_an_answer_holds_an_event_once_however_short_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 3, {})
        for partition in topic.local.values():
            for _ in range(50):
                await publish(partition, 10)
        member = await broker.groups.join("g", "a", ["t"], lease_ms=1)
        ticks = iter(range(broker.clock.steady_ms(), 2**53, 5))
        monkeypatch.setattr(broker.clock, "steady_ms", lambda: next(ticks))
        got = events(await member.poll(1500, 1 << 20))
        assert len({(event.partition, event.offset) for event in got}) == len(got) == 1500


@trio_test
async def test_small_polls_of_a_large_batch_get_small_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        values = [b"%04d" % number * 50 for number in range(1000)]
        keys = [b"%d" % (number % 7) for number in range(1000)]
        headers = [(("n", b"%d" % number),) for number in range(1000)]
        timestamps = list(range(5_000, 6_000))
        for codec in range(3):
            encoded = batch.encode(keys, values, timestamps=timestamps, headers=headers, codec=codec)
            await topic.led(0).publish(encoded).wait()
        for order in ("none", "key"):
            member = await broker.groups.join(order, "a", ["t"], order=order)
            seen: list[int] = []
            while polled := await member.poll(10, 1 << 20):
                if not polled.leases:
                    break
                assert sum(len(part[4]) for part in polled.parts) < 10_000
                for got in events(polled):
                    row = got.offset % 1000
                    assert (got.key, got.value, got.timestamp) == (keys[row], values[row], timestamps[row])
                    assert got.headers == headers[row]
                    seen.append(got.offset)
                await member.ack(ranges(polled)).wait()
            assert seen == list(range(3000))


@trio_test
async def test_events_that_are_gone_settle_by_themselves(tmp_path: Path) -> None:
    """Control batches, what the cleaner took, what retention took."""
    async with running(tmp_path) as broker:
        config = {"cleanup.policy": "compact", "segment.bytes": 4096, "min.cleanable.dirty.ratio": 0}
        topic, _ = await broker.create_topic("t", 1, config)
        partition = topic.led(0)
        for _ in range(40):
            await publish(partition, 10, [b"key-%d" % number for number in range(10)])
        member = await broker.groups.join("g", "a", ["t"])
        polled = await member.poll(20, 1 << 20)
        assert offsets(polled) == list(range(20))
        member.nack([("t", 0, 0, 9)])
        await broker.housekeeper.clean(partition, broker.now_ms())
        left = [got.offset for got in await read_all(partition)]
        assert left[0] > 20, "the cleaner took nothing"
        seen: list[int] = []
        while (polled := await member.poll(*ALL)).leases:
            seen += offsets(polled)
            await member.ack(ranges(polled)).wait()
        assert seen == left
        assert broker.groups.positions("g") == [("t", 0, 10)]  # the rest of the first lease is still out
        await member.ack([("t", 0, 10, 19)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 400)]

        await publish(partition, 10, [b"key-%d" % number for number in range(10)])
        assert len(offsets(await member.poll(*ALL))) == 10
        partition.log.roll()
        partition.log.delete_before(405)
        described = broker.groups.describe("g")["partitions"][0]
        assert (described["floor"], described["leased"]) == (partition.start_offset, 410 - partition.start_offset)
        await member.ack([("t", 0, 400, 409)]).wait()
        assert broker.groups.positions("g") == [("t", 0, 410)]


@trio_test
async def test_an_ack_is_not_answered_before_the_disk_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails is told to whoever acknowledged; the same ack then waits for the next write, though all is
    settled."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 3)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await until(lambda: not any(writer._states for writer in broker.groups.writers.values()))
        put = broker.groups.storage.put

        def refuse(*args: Any) -> None:
            raise errors.StorageError("the disk is full")

        monkeypatch.setattr(broker.groups.storage, "put", refuse)
        with pytest.raises(errors.StorageError, match="full"):
            await member.ack([("t", 0, 0, 2)]).wait()
        later = member.ack([("t", 0, 0, 2)])
        assert not later.done
        monkeypatch.setattr(broker.groups.storage, "put", put)
        await later.wait()
        assert member.ack([("t", 0, 0, 2)]).done
    async with running(tmp_path) as broker:
        assert broker.groups.positions("g") == [("t", 0, 3)]


@trio_test
async def test_a_group_that_can_not_be_written_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are kept in the same place, and written in the same turns."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 9)
        well, sick = [await broker.groups.join(name, "a", ["t"]) for name in ("well", "sick")]
        for member in (well, sick):
            await member.poll(*ALL)
        put, refused = broker.groups.storage.put, True

        def refuse(group: str, *args: Any) -> Any:
            if group == "sick" and refused:
                raise errors.CoordinatorNotAvailable("too few replicas to write to 'sick'")
            return put(group, *args)

        monkeypatch.setattr(broker.groups.storage, "put", refuse)
        for offset in range(8):
            late = sick.ack([("t", 0, offset, offset)])
            await well.ack([("t", 0, offset, offset)]).wait()
            with pytest.raises(errors.CoordinatorNotAvailable, match="sick"):
                await late.wait()
        refused = False
        await sick.ack([("t", 0, 8, 8)]).wait()
    async with running(tmp_path) as broker:
        assert [broker.groups.positions(name) for name in ("well", "sick")] == [[("t", 0, 8)], [("t", 0, 9)]]


@trio_test
async def test_a_group_waits_for_no_other_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster, where each partition of the groups' topic has replicas of its own."""
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 2)
        storage, stuck = broker.groups.storage, trio.Event()
        put, synced = storage.put, storage.synced

        async def wait_for(writes: Any) -> None:
            await synced(())
            if "slow" in writes:
                await stuck.wait()

        monkeypatch.setattr(storage, "index_of", lambda name: int(name == "slow"))
        monkeypatch.setattr(storage, "put", lambda name, *args: put(name, *args) or name)
        monkeypatch.setattr(storage, "synced", wait_for)
        slow: list[object] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_note, slow, partial(broker.groups.join, "slow", "a", ["t"])))
            await until(lambda: bool(broker.groups.sizes()))
            quick = await broker.groups.join("quick", "a", ["t"])
            await quick.poll(*ALL)
            await quick.ack([("t", 0, 0, 1)]).wait()
            assert not slow
            stuck.set()
        assert slow


async def _note(found: list[object], ask: Any) -> None:
    found.append(await ask())


@trio_test
@pytest.mark.parametrize("order", ["key", "none"])
async def test_a_coordinator_that_may_be_deposed_gives_no_event_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """A member that waits gets it once the coordinator is sure again."""
    monkeypatch.setattr(member_module, "LOOK_S", 0.001)
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 3, [b"k"] * 3)
        member = await broker.groups.join("g", "a", ["t"], order=order)
        assert offsets(await member.poll(1, 1 << 20)) == [0]
        await member.ack([("t", 0, 0, 0)]).wait()
        sure, asked = False, 0

        def is_sure(name: str) -> bool:
            nonlocal asked
            asked += 1
            return sure

        monkeypatch.setattr(broker.groups.storage, "is_sure", is_sure)
        now = member.poll_now(1, 1 << 20)
        assert now is not None
        assert offsets(now) == ([] if order == "key" else [1])
        if order == "key":
            got: list[object] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(_note, got, partial(member.poll, 1, 1 << 20, LONG_MS)))
                before = asked
                await until(lambda: asked > before + 4)
                assert got == []
                sure = True
            assert offsets(got[0]) == [1]  # type: ignore[arg-type]
        else:
            assert not asked


@trio_test
async def test_a_coordinator_that_may_be_deposed_buries_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next coordinator may have settled the event."""
    reports: list[tuple[str, dict[str, Any]]] = []

    def report(event: str, **facts: Any) -> None:
        reports.append((event, facts))

    monkeypatch.setattr(dead_letters, "FIRST_PAUSE_S", 0.001)
    async with running(tmp_path, report) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 1)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        await member.poll(*ALL)
        with monkeypatch.context() as patch:
            patch.setattr(broker.groups.storage, "is_sure", lambda name: False)
            member.nack([("t", 0, 0, 0)])
            await until(lambda: "dead_letter_failed" in [event for event, _ in reports])
            assert await read_all(broker.topic("t.g.dead").led(0)) == []
        await until(lambda: broker.groups.positions("g") == [("t", 0, 1)])
        assert len(await read_all(broker.topic("t.g.dead").led(0))) == 1


@trio_test
async def test_waiting_polls_end_when_the_broker_stops(tmp_path: Path) -> None:
    got: list[GroupPolled] = []
    async with trio.open_nursery() as nursery, running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        member = await broker.groups.join("g", "a", ["t"])

        async def wait() -> None:
            got.append(await member.poll(*ALL, LONG_MS))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
    assert [each.leases for each in got] == [[]]


@trio_test
async def test_a_log_that_lost_its_tail_takes_the_group_back(tmp_path: Path) -> None:
    """With durability "os" a loss of power may take events that were leased already. New events come in their place."""
    reports: list[str] = []
    async with running(tmp_path / "a") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 5)
        member = await broker.groups.join("g", "a", ["t"])
    shutil.copytree(tmp_path / "a" / "topics", tmp_path / "topics")
    async with running(tmp_path / "a") as broker:
        await publish(broker.topic("t").led(0), 5)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await member.ack([("t", 0, 0, 1), ("t", 0, 4, 7)]).wait()
    shutil.rmtree(tmp_path / "a" / "topics")
    shutil.copytree(tmp_path / "topics", tmp_path / "a" / "topics")
    (tmp_path / "a" / "reached").unlink()  # as the logs were never synced
    async with running(tmp_path / "a", lambda event, **facts: reports.append(event)) as broker:
        assert "group_ahead_of_log" in reports
        await publish(broker.topic("t").led(0), 2)
        member = await broker.groups.join("g", "a", ["t"])
        assert offsets(await member.poll(*ALL)) == [2, 3, 5, 6]


@trio_test
async def test_who_moves_a_group_brings_no_dead_event_into_its_topic(tmp_path: Path) -> None:
    """An event that is about to be buried is not dead any more if its group was moved back and is to get it again."""
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 1)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        assert offsets(await member.poll(10, 1 << 20)) == [0]
        read = partition.read
        moves: list[Any] = []

        async def moved(*args: Any, **more: Any) -> Any:
            span = await read(*args, **more)
            if not moves:
                moves.extend(await broker.groups.reset("g", None, None, "earliest", None))
            return span

        partition.read = moved  # type: ignore[method-assign]
        member.close()  # this ends the only delivery that the event may have
        await until(lambda: moves)
        dead = broker.topic("t.g.dead").led(0)
        member = await broker.groups.join("g", "a", ["t"], max_deliveries=1)
        assert offsets(await member.poll(10, 1 << 20)) == [0]
        member.close()
        await until(lambda: broker.groups.positions("g") == [("t", 0, 1)])
        assert len(await read_all(dead)) == 1


@trio_test
async def test_a_slow_join_holds_up_nobody_but_its_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is asked where the events of some time begin, and takes long to answer."""
    offset_for, slow, asked = Partition.offset_for, trio.Event(), trio.Event()

    async def found(partition: Partition, start: str, start_at: int | None) -> int:
        if start == "timestamp":
            asked.set()
            await slow.wait()
        return await offset_for(partition, start, start_at)

    monkeypatch.setattr(Partition, "offset_for", found)
    async with running(tmp_path) as broker, trio.open_nursery() as nursery:
        for name in ("t", "u"):
            topic, _ = await broker.create_topic(name, 1, {})
            await publish(topic.led(0), 3)
        groups, joined = broker.groups, []

        async def join(name: str, **more: Any) -> None:
            joined.append((name, await groups.join(name, "a", ["t"], **more)))

        nursery.start_soon(partial(join, "g", start="timestamp", start_at=1_000))
        await asked.wait()
        with trio.fail_after(30):
            await join("other")
            joined.pop()[1].close()
            assert await groups.reset("other", "t", None, "latest", None) == [("t", 0, 0, 3)]
            await groups.delete("other")
            await broker.delete_topic("u")
        nursery.start_soon(join, "g")
        await trio.testing.wait_all_tasks_blocked()
        assert not joined, "its own group waits"
        slow.set()
        await until(lambda: len(joined) == 2)
        assert {name for name, _ in joined} == {"g"}
