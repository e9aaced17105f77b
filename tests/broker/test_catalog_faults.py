"""Every write and every sync of the meta database fails in turn, in a broker that does a little of everything.

Each step is tried until it is taken, for the broker opens the database anew by itself. Then what it has in memory must
be what a restart finds on the disk; and where it loses power instead, right when the disk fails, whatever it had
answered must be there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker import broker as broker_module
from krappy.broker import meta_sync
from krappy.broker.broker import LocalBroker
from krappy.broker.groups import group_writer
from krappy.broker.staging import staging
from krappy.broker.transactions import transactions
from krappy.core.kafka.offset import At, Offset
from krappy.errors import KrappyError, StorageError, UnknownGroup
from krappy.ports import GroupMember, Position
from krappy.store.meta import Meta
from krappy.types import TopicPartition
from tests.broker import staged
from tests.broker.engine import as_killed, running
from tests.broker.staged import known
from tests.broker.transactional import Producer
from tests.long import LONG
from tests.store.faulty_meta import Faults, FaultyMeta

STRIDE = 1 if LONG else 5
Step = Callable[[LocalBroker], Awaitable[object]]
AT = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (meta_sync, "LOOK_S"),
        (group_writer, "RETRY_S"),
        (staging, "RETRY_S"),
        (transactions, "RETRY_S"),
    ):
        monkeypatch.setattr(module, name, 0.01)


async def kafka_commit(broker: LocalBroker, group: str, at: int) -> None:
    positions = broker.kafka_groups.offsets
    found = positions.check(group, "", -1, None)
    await positions.commit(found, {("t", 0): Offset(at, -1, "", 5)})


async def delete_group(broker: LocalBroker, name: str) -> None:
    """Deletes a group. It may be gone already, if a try before was refused only after it had deleted the group."""
    try:
        await broker.groups.delete(name)
    except UnknownGroup:
        await broker.sync_meta()


async def transaction(broker: LocalBroker, commit: bool) -> None:
    producer = await Producer(broker, "x").init()
    await producer.write((b"k", b"v"))
    await broker.transactions.add_group("x", producer.id, producer.epoch, "kafka")
    member = GroupMember("kafka", "", -1, None)
    await broker.participant.stage_offsets("x", producer.id, producer.epoch, member, {AT: Position(3, -1, "")})
    await producer.end(commit)


async def job(broker: LocalBroker, name: str, commit: bool) -> None:
    token = await staged.staged(broker, name, "a", "b")
    if commit:
        await staged.commit(broker, name, token)
    else:
        await broker.staging.abort(name)


def steps() -> list[tuple[str, Step]]:
    return [
        ("create t", lambda b: b.create_topic("t", 2, {})),
        ("create u", lambda b: b.create_topic("u", 1, {"retention.ms": 5})),
        ("alter t", lambda b: b.alter_topic("t", {"segment.ms": 77}, None)),
        ("native commit", lambda b: b.groups.commit("native", [("t", 0, 0), ("u", 0, 0)])),
        ("kafka commit", lambda b: kafka_commit(b, "kafka", 1)),
        ("kafka commit u", lambda b: kafka_commit(b, "other", 2)),
        ("more partitions", lambda b: b.alter_topic("t", None, 3)),
        ("abort", lambda b: transaction(b, False)),
        ("commit", lambda b: transaction(b, True)),
        ("settings", lambda b: b.dynamic.alter("", {"log.retention.ms": "86400000"})),
        ("delete u", lambda b: b.delete_topic("u")),
        ("create u anew", lambda b: b.create_topic("u", 1, {})),
        ("aborted job", lambda b: job(b, "left", False)),
        ("published job", lambda b: job(b, "done", True)),
        ("delete a group", lambda b: delete_group(b, "other")),
        ("delete a native group", lambda b: delete_group(b, "native")),
        ("native commit again", lambda b: b.groups.commit("native", [("t", 1, 0)])),
        ("create w", lambda b: b.create_topic("w", 1, {})),
    ]


def stored(offsets: Mapping[At, Offset]) -> dict[At, Offset]:
    return {at: offset._replace(owner="", turn=0) for at, offset in offsets.items()}


def memory(broker: LocalBroker) -> dict[str, Any]:
    """All that a restart must find again."""
    groups, kafka = broker.groups, broker.kafka_groups
    jobs = {name: getattr(known(broker, name), "state", None) for name in ("left", "done")}
    return {
        "topics": {topic.name: (topic.id, topic.config, topic.numbers) for topic in broker.catalog.list()},
        "served": {name: (topic.id, len(topic.local)) for name, topic in broker.topics.items()},
        "native": {name: groups.positions(name) for name in groups.sizes()},
        "kafka": {name: stored(each.offsets) for name, each in kafka.groups.items() if each.offsets},
        "pending": {
            name: {id: stored(some) for id, some in each.pending.items()}
            for name, each in kafka.groups.items()
            if each.pending
        },
        "transactions": {found.name: found[:4] for found in broker.transactions.list()},
        "jobs": jobs,
        "settings": dict(broker.dynamic.topic_defaults),
    }


def check_whole(found: dict[str, Any]) -> None:
    """What holds whatever was refused: no number, no id is given twice; what the catalog has is served."""
    numbers = [number for _, _, each in found["topics"].values() for number in each]
    assert len(numbers) == len(set(numbers)), found["topics"]
    assert {name: (id, len(each)) for name, (id, _, each) in found["topics"].items()} == found["served"]


async def taken(broker: LocalBroker, name: str, step: Step, refused: list[str]) -> None:
    """Tries a step until it is taken; adds each error to `refused`."""
    while True:
        try:
            await step(broker)
            return
        except KrappyError as error:
            if not error.retriable:
                raise AssertionError(f"{name}: {error!r}, after {refused}") from error
            refused.append(f"{name}: {error}")
            assert len(refused) < 1000, refused[-3:]
            await trio.sleep(0.01)


Memory = dict[str, Any]


async def settled(broker: LocalBroker) -> Memory:
    """What the broker has in memory once it has carried out what was decided, and the disk takes changes again."""
    with trio.fail_after(30):
        while broker.meta.failure or any(each.prepared for each in broker.transactions.list()):
            await trio.sleep(0.01)
        while any(each.state in ("Publishing", "Marking") for each in broker.staging.list()):
            await trio.sleep(0.01)
        while broker.catalog.deleting():  # as housekeeping does
            await broker.changes.finish_deletions()
            await trio.sleep(0.01)
    return memory(broker)


async def life(data: Path, faults: Faults, number: int) -> tuple[list[Memory], Memory, list[str]]:
    """Runs all steps, in which the operation of this number fails.

    Returns what memory had before and after the step in which the disk failed, what it had at the end, and what was
    refused.
    """
    refused: list[str] = []
    around: list[Memory] = []
    async with running(data, durability="fsync") as broker:
        faults.at = faults.count + number
        for name, step in steps():
            before = await settled(broker)
            await taken(broker, name, step, refused)
            if faults.happened and not around:
                around = [before, await settled(broker)]
        held = await settled(broker)
        await taken(broker, "the last sync", lambda b: b.sync_meta(), refused)
        return around, held, refused


async def found_by_restart(data: Path) -> Memory:
    async with running(data, durability="fsync") as broker:
        return await settled(broker)


def check_untouched(found: Memory, before: Memory, after: Memory) -> None:
    """What the step under way does not touch is as it was."""
    for part, held in before.items():
        for key, value in held.items():
            if after[part].get(key) == value and part != "pending":  # "pending" differs only within a step
                assert found[part].get(key) == value, (part, key)


def test_each_operation_fails_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(number: int) -> tuple[Faults, list[str]]:
        faults = Faults()
        data, copy = tmp_path / str(number), tmp_path / f"{number}-lost"
        monkeypatch.setattr(broker_module, "Meta", lambda folder, keep: FaultyMeta(folder, faults, keep=keep))
        async with running(data, durability="fsync"):
            pass

        def lose_power() -> None:
            as_killed(data, copy)
            faults.lose(copy / "meta")

        faults.on_failure = lose_power
        around, held, refused = await life(data, faults, number)
        monkeypatch.setattr(broker_module, "Meta", Meta)
        check_whole(held)
        assert await found_by_restart(data) == held, (number, faults.happened, refused)
        if around:
            found = await found_by_restart(copy)
            check_whole(found)
            check_untouched(found, *around)
        return faults, refused

    async def all_of_them() -> None:
        met = set()
        with trio.fail_after(600):
            for number in range(0, 1000, STRIDE):
                faults, refused = await one(number)
                if not faults.happened:
                    break
                met |= {(faults.happened, refusal.partition(":")[0]) for refusal in refused}
        assert {kind for kind, _ in met} == {"write", "sync"}
        assert len({name for _, name in met}) > len(steps()) // 3

    trio.run(all_of_them)


def test_a_start_that_the_disk_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one finds all there was."""

    async def main() -> None:
        with trio.fail_after(60):
            async with running(tmp_path, durability="fsync") as broker:
                await broker.create_topic("t", 2, {"segment.ms": 5})
                held = memory(broker)
            for number in range(2):
                faults = Faults(number)
                with monkeypatch.context() as patch:
                    patch.setattr(
                        broker_module, "Meta", lambda folder, keep, faults=faults: FaultyMeta(folder, faults, keep=keep)
                    )
                    with pytest.RaisesGroup(StorageError, flatten_subgroups=True):
                        async with running(tmp_path, durability="fsync"):
                            pass
                assert faults.happened
                assert await found_by_restart(tmp_path) == held

    trio.run(main)
