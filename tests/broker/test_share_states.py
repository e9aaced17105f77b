"""What a broker keeps of share groups (KIP-932). A leader may write only if it was the last to read, and if nobody has
moved the group meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share_state import ShareState
from krappy.core.leases import Leases
from krappy.errors import KrappyError, UnknownTopic, WrongGroupKind
from krappy.ports import PartitionId
from tests.broker.engine import running


def at(floor: int) -> list[int]:
    return Leases(floor, max_deliveries=5).dump()


def fault(error: object) -> Fault:
    assert isinstance(error, Refused)
    return error.fault


@trio_test
async def test_an_earlier_leader_may_not_write(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        id, states = PartitionId(topic.id, 0), broker.groups.states
        await states.begin("g")
        old = (await states.read("g", {id: 4}).wait())[id]
        assert isinstance(old, ShareState)
        assert not old.leases
        assert await states.write("g", {id: old._replace(version=1, leases=at(3))}).wait() == {}
        new = (await states.read("g", {id: 5}).wait())[id]
        assert new == ShareState(old.state_epoch, 5, 1, at(3))
        refused = await states.write("g", {id: old._replace(version=2, leases=at(9))}).wait()
        assert fault(refused[id]) is Fault.FENCED_LEADER_EPOCH
        assert fault((await states.read("g", {id: 4}).wait())[id]) is Fault.FENCED_LEADER_EPOCH
        assert (await states.kept("g"))[id].start == 3


@trio_test
async def test_a_leader_that_has_read_nothing_yet_fences_the_one_before(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        id, states = PartitionId(topic.id, 0), broker.groups.states
        await states.begin("g")
        old = (await states.read("g", {id: 4}).wait())[id]
        new = (await states.read("g", {id: 5}).wait())[id]
        assert isinstance(old, ShareState)
        assert isinstance(new, ShareState)
        refused = await states.write("g", {id: old._replace(version=1, leases=at(9))}).wait()
        assert fault(refused[id]) is Fault.FENCED_LEADER_EPOCH
        assert await states.write("g", {id: new._replace(version=1, leases=at(1))}).wait() == {}
        assert await states.kept("g") == {id: (new.state_epoch, 5, 1, 0)}


@trio_test
async def test_a_write_that_was_on_its_way_for_long_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        id, states = PartitionId(topic.id, 0), broker.groups.states
        await states.begin("g")
        read = (await states.read("g", {id: 4}).wait())[id]
        assert isinstance(read, ShareState)
        assert await states.write("g", {id: read._replace(version=2, leases=at(8))}).wait() == {}
        assert await states.write("g", {id: read._replace(version=1, leases=at(2))}).wait() == {}
        assert (await states.kept("g"))[id].start == 8


@trio_test
async def test_a_group_that_is_moved_or_deleted_is_read_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        id, states = PartitionId(topic.id, 0), broker.groups.states
        await states.begin("g")
        read = (await states.read("g", {id: 4}).wait())[id]
        assert isinstance(read, ShareState)
        late = read._replace(version=1, leases=at(9))
        await states.move("g", {id: 5})
        assert fault((await states.write("g", {id: late}).wait())[id]) is Fault.FENCED_STATE_EPOCH
        with pytest.raises(UnknownTopic):
            await states.move("g", {id: 6, PartitionId(topic.id, 1): 6})
        assert (await states.kept("g"))[id].start == 5
        assert await states.delete("g", {topic.id})
        assert fault((await states.write("g", {id: late}).wait())[id]) is Fault.FENCED_STATE_EPOCH
        assert await states.delete("g", None)
        assert not await states.delete("g", None)
        with pytest.raises(Refused) as gone:
            states.write("g", {id: late})
        assert fault(gone.value) is Fault.GROUP_ID_NOT_FOUND
        await states.begin("g")
        assert fault((await states.write("g", {id: late}).wait())[id]) is Fault.FENCED_STATE_EPOCH


@trio_test
async def test_names_topics_and_restarts(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        states = broker.groups.states
        await states.begin("g")
        with pytest.raises(WrongGroupKind):
            await broker.groups.join("g", "c", ["t"])
        await broker.groups.join("native", "c", ["t"])
        with pytest.raises(Refused):
            await states.begin("native")
        await states.move("g", {PartitionId(topic.id, 0): 3, PartitionId(topic.id, 1): 4})
        found = await states.read("g", {PartitionId(b"?" * 16, 0): 1, PartitionId(topic.id, 2): 1}).wait()
        assert all(isinstance(each, KrappyError) for each in found.values())
        kept = await states.kept("g")
    async with running(tmp_path) as broker:
        states = broker.groups.states
        assert states.keeps("g")
        assert await states.kept("g") == kept
        await broker.delete_topic("t")
        made, _ = await broker.create_topic("t", 2, {})
        assert await states.kept("g") == {}
        fresh = (await states.read("g", {PartitionId(made.id, 0): 1}).wait())[PartitionId(made.id, 0)]
        assert isinstance(fresh, ShareState)
        assert not fresh.leases
    async with running(tmp_path) as broker:
        assert await broker.groups.states.kept("g") == {}
