"""The life of shared groups: names, where they start, what they remember, how they and their positions end."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy import errors
from tests.broker.engine import events, offsets, publish, running

ALL = (1000, 1 << 20)  # records and bytes of a poll that takes all there is
LONG_MS = 60_000  # ms; no test waits for so long


@trio_test
async def test_names_run_out_and_come_back(tmp_path: Path) -> None:
    async with running(tmp_path, group_max_members=2) as broker:
        await broker.create_topic("t", 1, {})
        one = await broker.groups.join("g", "a", ["t"])
        await broker.groups.join("g", "b", ["t"])
        with pytest.raises(errors.GroupFull):
            await broker.groups.join("g", "c", ["t"])
        one.close()
        one.close()
        assert (await broker.groups.join("g", "d", ["t"])).name == "g_0"


@trio_test
async def test_where_a_group_starts_and_what_it_remembers(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await broker.create_topic("u", 1, {})
        await publish(topic.led(0), 5)
        member = await broker.groups.join("g", "a", ["t"], start="latest")
        assert offsets(await member.poll(*ALL)) == []
        await broker.alter_topic("t", None, 2)
        await publish(topic.led(0), 1)
        await publish(topic.led(1), 2)
        polled = events(await member.poll(*ALL))
        assert sorted((got.partition, got.offset) for got in polled) == [(0, 5), (1, 0), (1, 1)]
        with pytest.raises(errors.UnknownTopic):
            await broker.groups.join("g", "a", ["nope"])
        with pytest.raises(errors.OffsetOutOfRange):
            await broker.groups.join("h", "a", ["t"], start="offset", start_at=77)
        with pytest.raises(errors.UnknownGroup):
            broker.groups.describe("h")
    async with running(tmp_path) as broker:
        assert broker.groups.positions("g") == [("t", 0, 5), ("t", 1, 0)]
        member = await broker.groups.join("g", "a", ["t", "u"], start="earliest")
        assert sorted((got.topic, got.partition, got.offset) for got in events(await member.poll(*ALL))) == [
            ("t", 0, 5),
            ("t", 1, 0),
            ("t", 1, 1),
        ]


@trio_test
async def test_the_order_of_a_group_changes_only_between_its_members(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 4, [b"a", b"a", b"b", b"a"])
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(2, 1 << 20)
        with pytest.raises(errors.InvalidRequest):
            await broker.groups.join("g", "b", ["t"], order="key")
        member.close()
        first = await broker.groups.join("g", "b", ["t"], order="key")
        second = await broker.groups.join("g", "b", ["t"], order="key")
        assert offsets(await first.poll(1, 1 << 20)) == [0]
        assert offsets(await second.poll(*ALL)) == [2]
        await first.ack([("t", 0, 0, 0)]).wait()
        assert offsets(await second.poll(*ALL)) == [1, 3]


@trio_test
async def test_reset_and_delete_want_an_empty_group(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        for partition in topic.local.values():
            await publish(partition, 10)
        member = await broker.groups.join("g", "a", ["t"])
        await member.poll(*ALL)
        await member.ack([("t", 0, 0, 9), ("t", 1, 0, 3)]).wait()
        assert broker.groups.describe("g")["members"] == [{"name": "g_0", "client": "a", "leased": 6}]
        with pytest.raises(errors.GroupNotEmpty):
            await broker.groups.reset("g", None, None, "earliest", None)
        with pytest.raises(errors.GroupNotEmpty):
            await broker.groups.delete("g")
        with pytest.raises(errors.GroupNotEmpty):
            await broker.groups.commit("g", [("t", 0, 0)])
        planned = await broker.groups.reset("g", None, None, "latest", None, dry_run=True)
        assert planned == [("t", 0, 10, 10), ("t", 1, 4, 10)]
        assert broker.groups.positions("g") == [("t", 0, 10), ("t", 1, 4)]
        member.close()
        assert await broker.groups.reset("g", "t", [1], "offset", 99) == [("t", 1, 4, 10)]
        assert await broker.groups.reset("g", None, None, "timestamp", 999) == [("t", 0, 10, 0), ("t", 1, 10, 0)]
        with pytest.raises(errors.UnknownPartition):
            await broker.groups.reset("g", "t", [7], "earliest", None)
        member = await broker.groups.join("g", "a", ["t"])
        assert len(offsets(await member.poll(*ALL))) == 20
        member.close()
        await broker.groups.delete("g")
        with pytest.raises(errors.UnknownGroup):
            await broker.groups.delete("g")
    async with running(tmp_path) as broker:
        assert list(broker.groups.each_group()) == []


@trio_test
async def test_readers_commit_positions_under_a_name(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        await publish(topic.led(0), 5)
        await broker.groups.commit("readers", [("t", 0, 3)])
        for wrong, error in (
            (("t", 0, 6), errors.OffsetOutOfRange),
            (("t", 2, 0), errors.UnknownPartition),
            (("u", 0, 0), errors.UnknownTopic),
        ):
            with pytest.raises(error):
                await broker.groups.commit("readers", [("t", 0, 4), wrong])
        assert broker.groups.positions("readers") == [("t", 0, 3)]
    async with running(tmp_path) as broker:
        assert broker.groups.describe("readers")["kind"] == "positions"
        assert broker.groups.positions("readers") == [("t", 0, 3)]
        member = await broker.groups.join("readers", "a", ["t"])
        assert broker.groups.describe("readers")["kind"] == "shared"
        assert offsets(await member.poll(*ALL)) == [3, 4]


@trio_test
async def test_a_deleted_topic_takes_its_positions_along(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for name in ("t", "u"):
            topic, _ = await broker.create_topic(name, 1, {})
            await publish(topic.led(0), 3)
        member = await broker.groups.join("g", "a", ["t", "u"])
        only = await broker.groups.join("h", "a", ["t"])
        await member.poll(*ALL)
        await only.poll(*ALL)
        raised: list[BaseException] = []

        async def wait() -> None:
            with pytest.raises(errors.UnknownTopic) as found:
                await only.poll(*ALL, LONG_MS)
            raised.append(found.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await broker.delete_topic("t")
        assert raised
        assert broker.groups.positions("g") == [("u", 0, 0)]
        await member.ack([("u", 0, 0, 2)]).wait()
        with pytest.raises(errors.LeaseLost):
            await member.ack([("t", 0, 0, 2)]).wait()
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 2)
        with pytest.raises(errors.UnknownTopic, match="made anew"):
            await member.poll(*ALL, LONG_MS)
        again = await broker.groups.join("g", "a", ["t", "u"])
        assert [(got.topic, got.offset) for got in events(await again.poll(*ALL))] == [("t", 0), ("t", 1)]
    async with running(tmp_path) as broker:
        assert broker.groups.positions("g") == [("t", 0, 0), ("u", 0, 3)]
