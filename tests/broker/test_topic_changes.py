"""Topics made and deleted many at once, one right after the other under one name, and with a kill between two steps."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy import descriptors
from krappy.broker import broker as broker_module
from krappy.broker import meta_sync
from krappy.broker.broker import LocalBroker
from krappy.broker.topics import deletion, opening, topic_changes
from krappy.broker.topics.topic import Topic
from krappy.errors import InvalidTopic, KrappyError, StorageError, TopicExists, UnknownTopic
from krappy.records import batch
from krappy.store.views import Views
from tests import schedules
from tests.broker.engine import as_killed, publish, read_all, running, until
from tests.store.faulty_meta import Faults, FaultyMeta

SAME_NAME_ROUNDS = 25


@trio_test
async def test_many_are_made_and_deleted_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, durability="fsync") as broker:
        names = [f"t{number}" for number in range(20)]
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(broker.create_topic, name, 5, {})
        assert sorted(broker.topics) == sorted(names)
        numbers = [p.number for topic in broker.topics.values() for p in topic.local.values()]
        assert len(set(numbers)) == 100
        for name in names:
            assert await publish(broker.topic(name).led(3), 1, [b"k"]) == 0
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(broker.delete_topic, name)
        assert not broker.topics
        await until(lambda: not broker.catalog.deleting())
        assert not [*(tmp_path / "topics").iterdir()]


@trio_test
async def test_of_those_that_ask_for_one_name_one_makes_it(tmp_path: Path) -> None:
    outcomes: list[Any] = []

    async def create(broker: LocalBroker, name: str) -> None:
        try:
            outcomes.append((await broker.create_topic(name, 1, {}))[1])
        except KrappyError as error:
            outcomes.append(type(error))

    async with running(tmp_path) as broker:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(create, broker, "t")
        assert sorted(map(str, outcomes)) == sorted(map(str, [True] + [TopicExists] * 4))
        outcomes.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, broker, "a.b")
            nursery.start_soon(create, broker, "a_b")
        assert sorted(map(str, outcomes)) == sorted(map(str, [True, InvalidTopic]))
        with pytest.raises(TopicExists):
            await broker.create_topic("t", 1, {})
        await broker.delete_topic("t")
        await broker.create_topic("t", 1, {})


@pytest.mark.parametrize("step", ["the catalog", "some folders"])
@trio_test
async def test_a_kill_while_a_topic_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The place in the catalog is what counts: the next start makes those of its folders that are missing."""
    make = opening._make_folders

    def killed(places: Any) -> None:
        if step == "some folders":
            make(places[:2])
        as_killed(tmp_path / "data", tmp_path / "killed")
        make(places)

    async with running(tmp_path / "data", durability="fsync") as broker:
        with monkeypatch.context() as patched:
            patched.setattr(opening, "_make_folders", killed)
            await broker.create_topic("t", 5, {"retention.ms": "1000000"})
    async with running(tmp_path / "killed") as broker:
        topic = broker.topic("t")
        assert topic.given == {"retention.ms": "1000000"}
        assert [await publish(partition, 1, [b"k"]) for partition in topic.local.values()] == [0] * 5
    async with running(tmp_path / "killed") as broker:
        assert [partition.high_watermark for partition in broker.topic("t").local.values()] == [1] * 5


@trio_test
async def test_more_partitions_than_there_are_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before the catalog has them, since it takes seconds to take so many in and to let them go."""
    monkeypatch.setattr(descriptors, "room", lambda: 99)
    async with running(tmp_path) as broker:
        before = dict(broker.meta.items(b""))
        with pytest.raises(StorageError, match="RLIMIT_NOFILE"):
            await broker.create_topic("t", 100, {})
        assert dict(broker.meta.items(b"")) == before
        await broker.create_topic("t", 99, {})


@trio_test
async def test_others_have_their_turns_beside_a_large_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    work: Counter[tuple[str, int]] = Counter()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def wrapped(*given: Any) -> Any:
            work[name, turns] += 1
            return real(*given)

        monkeypatch.setattr(owner, name, wrapped)

    async with running(tmp_path) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        counted(topic_changes.TopicChanges, "_partition")
        await broker.create_topic("t", 3 * topic_changes.AT_ONCE, {})
        await broker.alter_topic("t", None, 5 * topic_changes.AT_ONCE)
        numbers = broker.catalog.list()[0].numbers
        assert [each.number for each in broker.topic("t").all_led()] == numbers
        counted(broker.views, "drop")
        await broker.delete_topic("t")
        await broker.changes.finish_deletions()
        assert not broker.catalog.deleting()
        assert sum(work.values()) == 10 * topic_changes.AT_ONCE
        assert max(work.values()) <= 2 * topic_changes.AT_ONCE
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("by", ["who wants the name", "housekeeping", "the next start"])
@trio_test
async def test_a_topic_that_can_neither_be_made_nor_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A full disk refuses the folders, and then the catalog's removal of the topic. It is no topic then, and its name
    is free."""
    data, faults = tmp_path / "data", Faults()
    monkeypatch.setattr(broker_module, "Meta", partial(FaultyMeta, faults=faults))
    monkeypatch.setattr(meta_sync, "LOOK_S", 0.01)
    make = opening._make_folders

    def full(places: Any) -> None:
        faults.at = faults.count
        raise StorageError("no space left")

    async with running(data, durability="fsync") as broker:
        monkeypatch.setattr(opening, "_make_folders", full)
        with pytest.raises(StorageError, match="no space left"):
            await broker.create_topic("t", 2, {})
        monkeypatch.setattr(opening, "_make_folders", make)
        await until(lambda: not broker.meta.failure)
        assert "t" in broker.catalog
        assert not broker.topics
        if by == "housekeeping":
            await broker.changes.finish_deletions()
            assert "t" not in broker.catalog
            assert not broker.catalog.deleting()
        if by != "the next start":
            topic, made = await broker.create_topic("t", 1, {})
            assert made
            assert await publish(topic.led(0), 1, [b"k"]) == 0
    async with running(data) as broker:
        assert len(broker.topic("t").all_led()) == (2 if by == "the next start" else 1)


@pytest.mark.parametrize("after", ["close", "_forget", "remove", "finish"])
@trio_test
async def test_a_kill_while_a_topic_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    killed: list[bool] = []

    async def then_killed(*given: Any) -> None:
        await right(*given)
        if not killed:
            killed.append(True)
            as_killed(tmp_path / "data", tmp_path / "killed")

    async with running(tmp_path / "data") as broker:
        topic, _ = await broker.create_topic("t", 3, {})
        for partition in topic.local.values():
            await publish(partition, 3, [b"a", b"b", b"c"])
        await broker.groups.commit("g", [("t", 0, 3)])
        owner: Any = broker.changes if after == "_forget" else deletion
        right = getattr(owner, after)
        with monkeypatch.context() as patched:
            patched.setattr(owner, after, then_killed)
            await broker.delete_topic("t")
            await until(lambda: killed and not broker.catalog.deleting())
    async with running(tmp_path / "killed") as broker:
        assert not broker.topics
        assert not broker.catalog.deleting()
        topic, _ = await broker.create_topic("t", 3, {})
        assert [partition.high_watermark for partition in topic.local.values()] == [0, 0, 0]
        assert broker.groups.positions("g") == []
        await broker.wait_for_views(topic.all_led())
        assert topic.led(0).look_up(b"a") is None


@trio_test
async def test_what_could_not_be_removed_is_before_its_name_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise StorageError("the disk is broken")

    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        await publish(topic.led(0), 3, [b"a", b"b", b"c"])
        with monkeypatch.context() as broken:
            broken.setattr(deletion, "_remove", refuse)
            await broker.delete_topic("t")
            with pytest.raises(StorageError, match="the disk is broken"):
                await broker.create_topic("t", 2, {})
            assert "t" not in broker.topics
        topic, _ = await broker.create_topic("t", 2, {})
        assert await read_all(topic.led(0)) == []
        assert not broker.catalog.deleting()


@pytest.mark.parametrize("seed", range(4))
def test_a_topic_that_is_made_anew_at_once_has_nothing_of_the_old_one(tmp_path: Path, seed: int) -> None:
    """Writers, lookups and waiting readers of the old topic get an error; an acknowledged event is in the topic to
    which it went."""
    chance = random.Random(seed)
    acknowledged: dict[bytes, list[bytes]] = {}  # by topic's id
    told: list[Topic] = []

    async def write(broker: LocalBroker, number: int) -> None:
        topic = broker.topics.get("t")
        value = b"%d" % number
        if topic is not None:
            data = batch.encode([b"k"], [value], timestamps=1)
            try:
                await topic.led(number % 2).publish(data).wait()
            except UnknownTopic:
                return
            acknowledged.setdefault(topic.id, []).append(value)

    async def watch(broker: LocalBroker, topic: Topic) -> None:
        partition = topic.led(0)
        await broker.wait_for_moves([partition], lambda: partition.gone is not None, 10**9)
        told.append(topic)

    async def commit(broker: LocalBroker, number: int) -> None:
        with suppress(KrappyError):
            await broker.groups.commit(f"g{number}", [("t", 0, 0), ("t", 1, 0)])

    async def anew(broker: LocalBroker) -> None:
        await broker.delete_topic("t")
        for _ in range(chance.randrange(4)):
            await trio.lowlevel.checkpoint()
        await broker.create_topic("t", 2, {})

    async def main() -> None:
        async with running(tmp_path, durability="fsync") as broker:
            await broker.create_topic("t", 2, {})
            old: list[Topic] = []
            for number in range(SAME_NAME_ROUNDS):
                topic = broker.topic("t")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch, broker, topic)
                    for each in range(6):
                        nursery.start_soon(write, broker, 10 * number + each)
                    nursery.start_soon(anew, broker)
                    if chance.random() < 0.7:
                        nursery.start_soon(commit, broker, number % 3)
                old.append(topic)
                new = broker.topic("t")
                assert new.id != topic.id
                for group in broker.groups._groups.values():
                    assert all(shared.partition is new.led(shared.at[1]) for shared in group.shared.values())
                held = [got.value for partition in new.local.values() for got in await read_all(partition)]
                assert sorted(map(str, held)) == sorted(map(str, acknowledged.get(new.id, [])))
                await broker.wait_for_views(new.all_led())
                entries = [partition.look_up(b"k") for partition in new.local.values()]
                assert sum(entry is not None for entry in entries) == len({int(value) % 2 for value in held if value})
            assert told == old
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert len([*(tmp_path / "topics").iterdir()]) == 2
            last = broker.topic("t").id
        async with running(tmp_path) as broker:
            assert broker.topic("t").id == last
            held = [got.value for partition in broker.topic("t").local.values() for got in await read_all(partition)]
            assert sorted(map(str, held)) == sorted(map(str, acknowledged.get(last, [])))

    schedules.run(main, seed)


@trio_test
async def test_a_topic_is_deleted_only_if_it_is_the_one_that_was_meant(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        old, _ = await broker.create_topic("t", 1, {})
        await broker.delete_topic("t", old.id)
        new, _ = await broker.create_topic("t", 1, {})
        with pytest.raises(UnknownTopic):
            await broker.delete_topic("t", old.id)
        assert broker.topic("t") is new


@trio_test
async def test_a_view_is_turned_off_and_on_whatever_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off: nobody asks any more for what the view holds. On: only once its old entries are gone; else it stays off
    everywhere."""
    drop, refused = Views.drop, [2]  # the number of a partition

    def refusing(self: Views, number: int) -> None:
        if number in refused:
            raise StorageError("the disk refuses")
        drop(self, number)

    def views() -> list[bool]:
        return [broker.catalog.list()[0].config["view.enable"] == "true", topic.config.view] + [
            each.config.view for each in topic.local.values()
        ]

    monkeypatch.setattr(Views, "drop", refusing)
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 3, {})
        for partition in topic.local.values():
            await publish(partition, 2, [b"a", b"b"])
            await partition.flush_view()
        await broker.alter_topic("t", {"view.enable": "false"}, None)
        assert views() == [False] * 5
        for partition in topic.local.values():
            await partition.delete_records(1)
        with pytest.raises(StorageError, match="the disk refuses"):
            await broker.alter_topic("t", {"view.enable": "true"}, None)
        assert views() == [False] * 5
        assert not topic.scattered
        refused.clear()
        await broker.alter_topic("t", {"view.enable": "true"}, None)
        assert views() == [True] * 5
        for partition in topic.local.values():
            assert await partition.view_wait(None, 60)
            assert (partition.look_up(b"a"), partition.look_up(b"b") is None) == (None, False)
