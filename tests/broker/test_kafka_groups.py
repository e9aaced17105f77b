"""The coordinator of Kafka's groups on an engine: offsets over restarts, retention, transactions, kinds of groups."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.groups.distant import DistantPartition
from krappy.broker.kafka_groups.coordinator import KafkaGroups
from krappy.broker.kafka_groups.settings import HEARTBEAT, SESSION
from krappy.broker.overrides import OverrideStore
from krappy.core.kafka.classic_member import Join, Joined
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import Beat, Beaten
from krappy.core.kafka.offset import At, Offset
from krappy.errors import GroupNotEmpty, InvalidRequest, KrappyError, StorageError, UnknownGroup, WrongGroupKind
from tests.broker.engine import asks, publish, running, until

SETTINGS: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0}


def offset(broker: LocalBroker, at: int, metadata: str = "", age: int = 0) -> Offset:
    return Offset(at, 3, metadata, broker.clock.steady_ms() - age)


async def commit(
    broker: LocalBroker, name: str, offsets: Mapping[At, Offset], member: str = "", generation: int = -1
) -> None:
    found = broker.kafka_groups.offsets
    await found.commit(found.check(name, member, generation, None), offsets)


async def join(broker: LocalBroker, name: str, session_ms: int = 10_000, **more: Any) -> Joined:
    """Joins a group as its only member."""
    ask = Join("", None, "consumer", (("range", b"\0\0\0\0\0\1\0\1t\0\0\0\0"),), session_ms, 60_000, **more)
    joined = await broker.kafka_groups.join(name, ask).wait()
    if not joined.fault:
        groups = broker.kafka_groups
        await groups.sync(name, joined.member_id, joined.generation, None, None, None, {joined.member_id: b"x"}).wait()
    return joined


async def beat(broker: LocalBroker, name: str, member: str, epoch: int, **more: Any) -> Beaten:
    rebalance = 60_000 if epoch == 0 else -1
    given = {"topics": ("t",) if epoch == 0 else None, **more}
    answer = await broker.kafka_groups.beat(name, Beat(member, epoch, rebalance_ms=rebalance, **given)).wait()
    if isinstance(answer, KrappyError):
        raise answer
    return answer


def offsets_of(groups: KafkaGroups, name: str) -> dict[At, int]:
    group = groups.get(name)
    return {} if group is None else {at: found.offset for at, found in group.offsets.items()}


def run(work: Any, *args: Any, **settings: Any) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            await work(*args, **settings)

    trio.run(main)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_offsets_outlive_the_broker(tmp_path: Path, durability: str) -> None:
    async def work() -> None:
        async with running(tmp_path, durability=durability, **SETTINGS) as broker:
            await broker.create_topic("t", 2, {})
            await commit(broker, "g", {("t", 0): offset(broker, 5, "note"), ("t", 1): offset(broker, 6)})
            await commit(broker, "g", {("t", 1): offset(broker, 7)})
        async with running(tmp_path, **SETTINGS) as broker:
            group = broker.kafka_groups.find("g")
            assert offsets_of(broker.kafka_groups, "g") == {("t", 0): 5, ("t", 1): 7}
            assert (group.offsets["t", 0].leader_epoch, group.offsets["t", 0].metadata) == (3, "note")

    run(work)


def test_commits_that_follow_each_other_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered when it is durable, in order, and the last one counts."""

    async def work() -> None:
        async with running(tmp_path, durability="fsync", **SETTINGS) as broker:
            await broker.create_topic("t", 1, {})
            offsets = broker.kafka_groups.offsets
            synced: list[int] = []
            sync = broker.meta.sync

            def counted() -> None:
                sync()
                synced.append(1)

            monkeypatch.setattr(broker.meta, "sync", counted)
            answered: list[int] = []
            group = offsets.check("g", "", -1, None)
            laters = [offsets.commit_later(group, {("t", 0): offset(broker, at)}) for at in range(100)]

            def note(at: int, error: KrappyError | None) -> None:
                answered.append(at if error is None else -1)

            for at, later in enumerate(laters):
                later.then(lambda error, _, at=at: note(at, error))  # type: ignore[misc]
            assert not answered
            await until(lambda: len(answered) == 100)
            assert answered == [*range(100)]
            assert len(synced) < 10
            assert offsets_of(broker.kafka_groups, "g") == {("t", 0): 99}
            monkeypatch.setattr(broker.meta, "sync", _fails)
            error = await offsets.commit_later(group, {("t", 0): offset(broker, 100)}).wait()
            assert isinstance(error, StorageError)
            with pytest.raises(StorageError):
                await commit(broker, "g", {("t", 0): offset(broker, 101)})
            monkeypatch.setattr(broker.meta, "sync", sync)

    def _fails() -> None:
        raise StorageError("the disk is gone")

    run(work)


def test_settings_of_a_group_that_can_not_be_kept_are_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise StorageError("the disk is gone")

    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            settings = broker.kafka_groups.settings
            await settings.alter("g", {SESSION: "50000"})
            with monkeypatch.context() as patch:
                patch.setattr(OverrideStore, "save", fails)
                with pytest.raises(StorageError):
                    await settings.alter("g", {SESSION: "51000"})
            assert settings.held("g") == {SESSION: "50000"}
            assert settings.rules("g").session_ms == 50_000
            for bound, least in (("MAX_GROUPS", 1), ("MAX_NAMES", 5)):
                with monkeypatch.context() as patch:
                    patch.setattr(f"krappy.broker.kafka_groups.settings.{bound}", least)
                    with pytest.raises(InvalidRequest, match="1 groups have settings"):
                        await settings.alter("other", {SESSION: "50000"})
                    await settings.alter("g", {SESSION: "50000"})
            async with trio.open_nursery() as nursery:  # each is made on top of the one before
                for at in range(50):
                    nursery.start_soon(
                        settings.alter, "g", {SESSION if at % 2 else HEARTBEAT: f"{(50_000 if at % 2 else 6_000) + at}"}
                    )
            held = dict(settings.held("g"))
        async with running(tmp_path, **SETTINGS) as broker:
            assert broker.kafka_groups.settings.held("g") == held

    run(work)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_members_outlive_the_broker_and_generations_do_not_go_back(tmp_path: Path, durability: str) -> None:
    async def work() -> None:
        async with running(tmp_path, durability=durability, **SETTINGS) as broker:
            await broker.create_topic("t", 2, {})
            first = await join(broker, "g")
            await beat(broker, "h", "m", 0)
        async with running(tmp_path, **SETTINGS) as broker:
            groups = broker.kafka_groups
            assert groups.heartbeat("g", first.member_id, first.generation, None) is Fault.NONE
            assert (await beat(broker, "h", "m", 1)).epoch == 1
            assert groups.leave("g", [(first.member_id, None)]) == [Fault.NONE]
        async with running(tmp_path, **SETTINGS) as broker:
            assert (await join(broker, "g")).generation == first.generation + 2
            await beat(broker, "h", "m", -1)
            assert (await join(broker, "h")).generation > 1  # an empty group changes its protocol
            with pytest.raises(Refused) as refused:
                await beat(broker, "h", "m", 0)
            assert refused.value.fault is Fault.GROUP_ID_NOT_FOUND

    run(work)


def test_an_administrator_takes_members_out(tmp_path: Path) -> None:
    """LeaveGroup by member or instance, as removeMembersFromConsumerGroup does, in groups of both protocols."""

    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 2, {})
            groups = broker.kafka_groups
            await beat(broker, "h", "m", 0)
            await beat(broker, "h", "static", 0, instance_id="i")
            assert groups.leave("h", [("", "i"), ("m", None), ("m", None), ("", "i")]) == [
                *(Fault.NONE, Fault.NONE),
                *(Fault.UNKNOWN_MEMBER_ID, Fault.UNKNOWN_MEMBER_ID),
            ]
            assert groups.find("h").membership.empty
            await beat(broker, "h", "static", 0, instance_id="i")
            assert groups.leave("h", [("m", "i"), ("static", "i")]) == [Fault.UNKNOWN_MEMBER_ID, Fault.NONE]
            assert groups.leave("nobody", [("m", None)]) == [Fault.UNKNOWN_MEMBER_ID]

    run(work)


def test_offsets_are_forgotten_when_the_group_has_been_empty_for_long(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, offsets_retention_ms=60_000, **SETTINGS) as broker:
            await broker.create_topic("t", 1, {})
            await broker.create_topic("u", 1, {})
            groups = broker.kafka_groups
            old = {("t", 0): offset(broker, 1, age=10**7), ("u", 0): offset(broker, 1, age=10**7)}
            first = await join(broker, "g")
            await commit(broker, "g", old, first.member_id, first.generation)
            group, now = groups.find("g"), broker.clock.steady_ms()
            groups.offsets.expire(group, now)
            assert [*group.offsets] == [("t", 0)]  # nobody subscribes to u
            groups.leave("g", [(first.member_id, None)])
            groups.offsets.expire(group, now + 59_000)
            assert [*group.offsets] == [("t", 0)]
            groups.offsets.expire(group, now + 61_000)
            assert groups.get("g") is None
            with pytest.raises(Refused):
                groups.find("g")
            await commit(broker, "simple", {("t", 0): offset(broker, 1)})
            kept = Offset(1, -1, "", now, now + 5)  # the client said for how long
            await commit(broker, "short", {("t", 0): kept})
            for name in ("simple", "short"):
                groups.offsets.expire(groups.find(name), now + 6)
            assert groups.get("short") is None
            assert offsets_of(groups, "simple") == {("t", 0): 1}
        async with running(tmp_path, **SETTINGS) as broker:
            assert [*broker.kafka_groups.groups] == ["simple"]

    run(work)


def test_the_broker_looks_for_lapsed_offsets_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, offsets_retention_ms=1, **SETTINGS) as broker:
            await broker.create_topic("t", 1, {})
            await commit(broker, "g", {("t", 0): offset(broker, 1)})
            await until(lambda: broker.kafka_groups.get("g") is None)

    run(work)


def test_sessions_end_and_leave_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        settings = SETTINGS | {"group_min_session_timeout_ms": 1, "group_consumer_session_timeout_ms": 20}
        async with running(tmp_path, **settings) as broker:
            await broker.create_topic("t", 1, {})
            await join(broker, "g", session_ms=20)
            await beat(broker, "h", "m", 0)
            told = await broker.kafka_groups.join(
                "new", Join("", None, "c", (("r", b""),), 20, 20, id_first=True)
            ).wait()
            assert told.fault is Fault.MEMBER_ID_REQUIRED
            groups = broker.kafka_groups
            await until(lambda: groups.find("g").membership.empty and groups.find("h").membership.empty)
            await until(lambda: groups.get("new") is None)
            for name in ("g", "h"):
                groups.offsets.expire(groups.find(name), broker.clock.steady_ms())
            assert not groups.groups

    run(work)


def test_a_transaction_s_offsets_count_when_it_commits(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 3, {})
            groups = broker.kafka_groups
            await commit(broker, "g", {("t", 0): offset(broker, 1)})
            await groups.stage_offsets("g", 7, "", -1, None, {("t", 0): offset(broker, 5), ("t", 1): offset(broker, 6)})
            await groups.stage_offsets("g", 8, "", -1, None, {("t", 2): offset(broker, 9)})
            assert offsets_of(groups, "g") == {("t", 0): 1}
            assert [groups.find("g").unstable(("t", at)) for at in range(3)] == [True] * 3
        async with running(tmp_path, **SETTINGS) as broker:
            groups = broker.kafka_groups
            assert groups.find("g").unstable(("t", 1))
            groups.offsets.expire(groups.find("g"), 2**50)
            assert offsets_of(groups, "g") == {("t", 0): 1}
            await groups.complete_transaction("g", 7, True)
            await groups.complete_transaction("g", 8, False)
            await groups.complete_transaction("g", 8, True)
            await groups.complete_transaction("nobody", 8, True)
            assert offsets_of(groups, "g") == {("t", 0): 5, ("t", 1): 6}
        async with running(tmp_path, **SETTINGS) as broker:
            assert offsets_of(broker.kafka_groups, "g") == {("t", 0): 5, ("t", 1): 6}
            assert not broker.kafka_groups.find("g").pending

    run(work)


def test_a_transaction_of_a_member_is_fenced_with_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 1, {})
            first = await join(broker, "g")
            staged = {("t", 0): offset(broker, 5)}
            for member, generation, fault in (
                ("nobody", first.generation, Fault.UNKNOWN_MEMBER_ID),
                (first.member_id, 9, Fault.ILLEGAL_GENERATION),
            ):
                with pytest.raises(Refused) as refused:
                    await broker.kafka_groups.stage_offsets("g", 7, member, generation, None, staged)
                assert refused.value.fault is fault
            await broker.kafka_groups.stage_offsets("g", 7, first.member_id, first.generation, None, staged)
            await broker.kafka_groups.stage_offsets("g", 7, "", -1, None, staged)  # before KIP-447 nobody says who
            await broker.kafka_groups.complete_transaction("g", 7, True)
            assert offsets_of(broker.kafka_groups, "g") == {("t", 0): 5}

    run(work)


def test_a_deleted_topic_takes_its_offsets_along(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            groups = broker.kafka_groups
            for name in "tu":
                await broker.create_topic(name, 1, {})
            await commit(broker, "g", {(name, 0): offset(broker, 1) for name in "tu"})
            await groups.stage_offsets("g", 7, "", -1, None, {(name, 0): offset(broker, 2) for name in "tu"})
            await broker.delete_topic("t")
            assert offsets_of(groups, "g") == {("u", 0): 1}
            await groups.complete_transaction("g", 7, True)
            assert offsets_of(groups, "g") == {("u", 0): 2}

    run(work)


def test_a_name_belongs_to_one_kind_of_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 2, {})
            await publish(broker.topic("t").led(0), 10)
            groups, native = broker.kafka_groups, broker.groups
            member = await native.join("native", "client", ["t"])
            await native.commit("floors", [("t", 0, 1)])
            for name in ("native", "floors"):
                assert (await join(broker, name)).fault is Fault.INCONSISTENT_GROUP_PROTOCOL
                for refusal in (
                    lambda name=name: beat(broker, name, "m", 0),
                    lambda name=name: commit(broker, name, {("t", 0): offset(broker, 1)}),
                ):
                    with pytest.raises(Refused, match="native group"):
                        await refusal()
            await join(broker, "kafka")
            with pytest.raises(WrongGroupKind):
                await native.join("kafka", "client", ["t"])
            with pytest.raises(WrongGroupKind):
                await native.commit("kafka", [("t", 0, 1)])
            listed = {each["group"]: each["kind"] for each in list(native.each_group())}
            assert listed == {"native": "shared", "floors": "positions", "kafka": "classic"}
            told = {each.name: (each.kind, each.state) for each in groups.admin.list_groups()}
            assert told == {
                "native": ("krappy", "Stable"),
                "floors": ("krappy", "Empty"),
                "kafka": ("classic", "Stable"),
            }
            assert [each[3] for each in (await groups.admin.describe("native")).members] == ["client"]
            member.close()
            await groups.admin.delete("native")
            with pytest.raises(UnknownGroup):
                native.describe("native")

    run(work)


def test_a_name_goes_to_who_has_it_while_leaders_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native commit in a partition that another broker leads waits for that leader. Kafka's clients do not wait."""

    async def main() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 1, {})
            far = DistantPartition(broker.groups.distant, broker.topic("t"), 0)

            async def look() -> None:
                await join(broker, "g")
                far.last_stable_offset = far.readable_end = 5

            monkeypatch.setattr(far, "look", look)
            monkeypatch.setattr(broker.groups.distant, "asked", lambda topic, index: far)
            with pytest.raises(WrongGroupKind):
                await broker.groups.commit("g", [("t", 0, 1)])
            assert [each["kind"] for each in broker.groups.each_group()] == ["classic"]

    trio.run(main)


def test_native_tools_move_and_delete_an_empty_kafka_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 2, {})
            await publish(broker.topic("t").led(0), 10)
            native = broker.groups
            joined = await join(broker, "g", client_id="me", client_host="/host")
            await commit(broker, "g", {("t", 0): offset(broker, 4)}, joined.member_id, joined.generation)
            told = native.describe("g")
            assert told["members"] == [{"name": joined.member_id, "client": "me /host", "leased": 0}]
            assert [(each["floor"], each["end"], each["lag"]) for each in told["partitions"]] == [(4, 10, 6)]
            assert native.positions("g") == [("t", 0, 4)]
            for refused in (native.reset("g", None, None, "latest", None), native.delete("g")):
                with pytest.raises(GroupNotEmpty):
                    await refused
            dry = await native.reset("g", "t", None, "latest", None, dry_run=True)
            assert dry == [("t", 0, 4, 10), ("t", 1, 0, 0)]
            broker.kafka_groups.leave("g", [(joined.member_id, None)])
            assert await native.reset("g", None, [0], "offset", 7) == [("t", 0, 4, 7)]
        async with running(tmp_path, **SETTINGS) as broker:
            assert broker.groups.positions("g") == [("t", 0, 7)]
            await broker.groups.delete("g")
            await broker.groups.join("g", "client", ["t"])
            with pytest.raises(Refused):
                broker.kafka_groups.find("g")

    run(work)


def test_who_waits_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, group_initial_rebalance_delay_ms=100_000) as broker:
            ask = Join("", None, "consumer", (("range", b""),), 10_000, 300_000)
            later = broker.kafka_groups.join("g", ask)
            assert not later.done
            broker.begin_stop()
            assert (await later.wait()).fault is Fault.COORDINATOR_NOT_AVAILABLE
            assert (await broker.kafka_groups.join("g", ask).wait()).fault is Fault.COORDINATOR_NOT_AVAILABLE

    run(work)


def test_a_thousand_groups_cost_no_tasks(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, **SETTINGS) as broker:
            await broker.create_topic("t", 1, {})
            before = trio.lowlevel.current_statistics().tasks_living
            for number in range(1000):
                joined = await join(broker, f"g{number}")
                later = broker.kafka_groups.join(
                    f"g{number}", Join("", None, "consumer", (("range", b""),), 10_000, 60_000)
                )
                assert not later.done
                await commit(broker, f"g{number}", {("t", 0): offset(broker, number)}, joined.member_id, 1)
            assert trio.lowlevel.current_statistics().tasks_living <= before + 2
            assert len(list(broker.groups.each_group())) == 1000
        async with running(tmp_path, **SETTINGS) as broker:
            assert [offsets_of(broker.kafka_groups, f"g{number}") for number in (0, 999)] == [
                {("t", 0): 0},
                {("t", 0): 999},
            ]

    run(work)


def test_metadata_takes_no_more_than_its_part_of_the_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, memory_bytes=4 << 20, max_frame_bytes=1 << 20, **SETTINGS) as broker:
            protocols = (("range", bytes(300_000)),)
            faults = []
            for number in range(5):
                ask = Join("", None, "consumer", protocols, 10_000, 60_000)
                faults.append((await broker.kafka_groups.join(f"g{number}", ask).wait()).fault)
            assert faults == [Fault.NONE] * 3 + [Fault.GROUP_MAX_SIZE_REACHED] * 2
            groups = broker.kafka_groups
            groups.leave("g0", [(member, None) for member in groups.find("g0").membership.members])
            assert (await join(broker, "g9")).fault is Fault.NONE

    run(work)


async def joined(broker: LocalBroker, user: str, name: str, size: int, member_id: str = "") -> Joined:
    """This user joins a group, with metadata of `size` bytes."""
    asks(user)
    ask = Join(member_id, None, "consumer", (("range", bytes(size)),), 10_000, 60_000)
    return await broker.kafka_groups.join(name, ask).wait()


def test_the_groups_of_one_user_keep_no_members_of_others_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(
            tmp_path, authorizer="acl", memory_bytes=4 << 20, max_frame_bytes=1 << 20, **SETTINGS
        ) as broker:
            joins = partial(joined, broker)
            his = await joins("bob", "his", 10_000)
            for size in (300_000, 30_000, 3_000, 300):
                names = (f"hers-{size}-{number}" for number in range(1000))
                while (await joins("eve", next(names), size)).fault is Fault.NONE:
                    pass
            assert (await joins("bob", "his", 10_000, his.member_id)).fault is Fault.NONE
            assert (await joins("bob", "his-too", 100_000)).fault is Fault.NONE

    run(work)


def test_the_offsets_of_one_user_keep_nobody_from_committing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(
            tmp_path, authorizer="acl", memory_bytes=1 << 20, max_frame_bytes=1 << 19, **SETTINGS
        ) as broker:
            await broker.create_topic("t", 9, {})
            asks("bob")
            await commit(broker, "his", {("t", 0): offset(broker, 1)})
            asks("eve")
            for size in (4000, 100, 0):
                with contextlib.suppress(Refused):
                    for number in range(1000):
                        await commit(broker, f"hers-{size}-{number}", {("t", 0): offset(broker, 1, "x" * size)})
            asks("bob")
            for index in range(9):
                await commit(broker, "his", {("t", index): offset(broker, 1, "x" * 100)})

    run(work)


def test_a_user_does_not_answer_for_what_others_bring_to_his_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(
            tmp_path, authorizer="acl", memory_bytes=4 << 20, max_frame_bytes=1 << 20, **SETTINGS
        ) as broker:

            async def joins(user: str, name: str, size: int, member_id: str = "") -> Joined:
                with trio.move_on_after(0):
                    return await joined(broker, user, name, size, member_id)
                return Joined(Fault.NONE, "it waits for the others")

            his = (await joins("bob", "shared", 1000)).member_id
            for _ in range(3):  # whenever hers joins, his joins again
                for size in (300_000, 30_000, 3_000):
                    while (await joins("eve", "shared", size)).fault is Fault.NONE:
                        pass
                await joins("bob", "shared", 1000, his)
            assert (await joins("bob", "his", 100_000)).fault is Fault.NONE
            assert (await joins("amy", "hers", 100_000)).fault is Fault.NONE

    run(work)


def test_a_user_does_not_answer_for_what_others_commit_in_his_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(
            tmp_path, authorizer="acl", memory_bytes=1 << 20, max_frame_bytes=1 << 19, **SETTINGS
        ) as broker:
            await broker.create_topic("t", 999, {})
            for _ in range(3):
                asks("eve")
                for size in (4000, 100, 0):
                    with contextlib.suppress(Refused):
                        for index in range(1, 999):
                            await commit(broker, "shared", {("t", index): offset(broker, 1, "x" * size)})
                asks("bob")
                await commit(broker, "shared", {("t", 0): offset(broker, 1)})
            await commit(broker, "his", {("t", 0): offset(broker, 1, "x" * 4000)})
            asks("amy")
            await commit(broker, "hers", {("t", 0): offset(broker, 1, "x" * 4000)})

    run(work)


def test_the_patterns_of_one_user_keep_no_patterns_of_others_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(
            tmp_path, authorizer="acl", memory_bytes=1 << 20, max_frame_bytes=1 << 19, **SETTINGS
        ) as broker:
            for number in range(100):
                await broker.create_topic(f"t{number}", 1, {})
            groups = broker.kafka_groups

            async def joins(user: str, pattern: str, epoch: int = 0) -> Fault | None:
                asks(user)
                _kept = groups.unmatched(user, pattern)
                for _ in groups.match(user, pattern):
                    pass
                beat = Beat(pattern, epoch, rebalance_ms=60_000, regex=pattern)
                answer = await groups.beat(user, beat).wait()
                return answer.fault if isinstance(answer, Refused) else None

            assert await joins("bob", "his") is None
            there = 0
            while await joins("eve", f"hers-{there}") is None:
                there += 1
            assert 5 < there < 25  # 10 kB each, and 256 KiB in all
            for number in range(3):
                assert await joins("bob", f"his-{number}") is None
            assert await joins("eve", "hers-0") is None
            assert await joins("eve", "hers") is Fault.GROUP_MAX_SIZE_REACHED
            for number in range(3):
                assert await joins("eve", f"hers-{number}", -1) is None
            assert await joins("eve", "hers") is None

    run(work)


def test_who_joins_again_needs_room_only_for_what_is_new(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, memory_bytes=4 << 20, max_frame_bytes=1 << 20, **SETTINGS) as broker:
            groups, protocols = broker.kafka_groups, (("range", bytes(900_000)),)
            joined = await groups.join("g", Join("", None, "consumer", protocols, 10_000, 60_000)).wait()
            again = Join(joined.member_id, None, "consumer", protocols, 10_000, 60_000)
            assert (await groups.join("g", again).wait()).fault is Fault.NONE

    run(work)


def test_offsets_take_no_more_than_their_part_of_the_memory(tmp_path: Path) -> None:
    async def work() -> None:
        small = SETTINGS | {"memory_bytes": 1 << 20, "max_frame_bytes": 1 << 19}
        async with running(tmp_path, **small) as broker:
            await broker.create_topic("t", 20, {})
            full = {("t", at): offset(broker, 1, "x" * 4096) for at in range(20)}
            for number in range(3):
                await commit(broker, f"g{number}", full)
            with pytest.raises(Refused) as refused:
                await commit(broker, "g3", full)
            assert refused.value.fault is Fault.COORDINATOR_NOT_AVAILABLE
            await commit(broker, "g0", full)  # what is there may move on
            with pytest.raises(Refused):
                await broker.kafka_groups.stage_offsets("g0", 7, "", -1, None, full)
            await broker.kafka_groups.admin.delete("g1")
            await broker.kafka_groups.stage_offsets("g0", 7, "", -1, None, full)
            await broker.kafka_groups.complete_transaction("g0", 7, True)
            await commit(broker, "g4", full)
        async with running(tmp_path, **small) as broker:
            with pytest.raises(Refused):
                await commit(broker, "g5", full)
            await broker.delete_topic("t")
            await broker.create_topic("t", 20, {})
            for number in range(3):
                await commit(broker, f"h{number}", full)

    run(work)
