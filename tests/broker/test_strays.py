"""What a partition knows of strays, keys that stand in another partition than their own: how that is kept, lost, and
decided anew."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.latest import latest_sets
from krappy.broker.partition import strays as strays_module
from krappy.broker.partition.applier import Applier
from krappy.broker.topics.topic import Topic
from krappy.broker.upkeep import cleaning
from krappy.entries.entry import entry_offset, is_tombstone
from krappy.errors import OffsetMismatch, StorageError
from krappy.partitioner import partition_for
from krappy.ports import StoredAt
from krappy.records import batch
from krappy.store import keys as stored_keys
from krappy.store.views import Views
from krappy.types import ABSENT
from krappy.waiting import Later
from tests.broker.engine import as_killed, running, until
from tests.broker.latest import Consumer

COUNT = 4
MINE = [key for key in (b"k%d" % number for number in range(400)) if partition_for(key, COUNT) == 1][:50]
ASTRAY = next(key for key in (b"k%d" % number for number in range(400)) if partition_for(key, COUNT) == 2)

COMPACTED: dict[str, Any] = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": 0,
    "delete.retention.ms": 0,
    "segment.ms": 1,
}


async def publish(topic: Topic, partition: int, *keys: bytes, value: bytes | None = b"v", timestamp: int = 1) -> None:
    data = batch.encode(list(keys), [value] * len(keys), timestamps=timestamp)
    await topic.led(partition).publish(data).wait()


async def folded(topic: Topic) -> None:
    for partition in topic.local.values():
        assert await partition.view_wait(None, 60)


async def new(broker: LocalBroker, count: int = COUNT, **config: Any) -> Topic:
    return (await broker.create_topic("t", count, config))[0]


@trio_test
async def test_a_topic_is_scattered_from_the_acknowledgement_of_its_first_stray_on(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker)
        assert not topic.scattered
        await publish(topic, 1, *MINE)
        await publish(topic, 2, ASTRAY)
        assert not topic.scattered, "keys that stand where they should"
        await publish(topic, 1, *MINE, ASTRAY)
        assert topic.scattered, "nobody may be told that the key is absent, although the view does not have it yet"
    async with running(tmp_path) as broker:
        assert broker.topic("t").scattered


@trio_test
async def test_the_keys_of_a_transaction_count_before_lookups_can_miss_them(tmp_path: Path) -> None:
    """The batches of a transaction are not in memory when they become readable: until they are applied, nothing is
    known of their keys."""
    async with running(tmp_path) as broker:
        topic = await new(broker)
        partition = topic.led(1)
        partition.applier._kept = 1 << 60  # as if too much were waiting: they come from the log
        await publish(topic, 1, *MINE)
        await folded(topic)
        assert not topic.scattered
        data = batch.encode([ASTRAY], [b"v"], timestamps=1)
        header = batch.read_header(data)
        await partition.publish_own(header, data).wait()  # without columns
        assert topic.scattered
        await folded(topic)
        assert topic.scattered


@trio_test
async def test_a_view_of_an_earlier_version_is_looked_through_and_safe_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "before") as broker:
        topic = await new(broker)
        await publish(topic, 1, *MINE)
        await folded(topic)
    forget(tmp_path / "before")
    gate = trio.Event()
    look = strays_module.ViewStrays._any

    async def later(self: strays_module.ViewStrays) -> bool:
        await gate.wait()
        return await look(self)

    monkeypatch.setattr(strays_module.ViewStrays, "_any", later)
    async with running(tmp_path / "before") as broker:
        topic = broker.topic("t")
        assert topic.scattered, "nothing is known of it yet"
        gate.set()
        await until(lambda: not topic.scattered)
    async with running(tmp_path / "before") as broker:
        assert not broker.topic("t").scattered, "it is kept"


def forget(data: Path) -> None:
    """Leaves the views as they were written before anything was kept of strays."""
    views = Views(data / "views")
    for number in range(1, COUNT + 1):
        views._commit(lambda batch, number=number: batch.delete(stored_keys.strays_key(number)))  # type: ignore[misc]
    views.close()


@trio_test
async def test_a_stray_in_a_view_of_an_earlier_version_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays_module, "AT_ONCE", 3)
    monkeypatch.setattr(strays_module, "LEAST", 2)
    async with running(tmp_path) as broker:
        topic = await new(broker)
        await publish(topic, 1, *MINE, ASTRAY)
        await folded(topic)
    forget(tmp_path)
    async with running(tmp_path) as broker:
        topic = broker.topic("t")
        await until(lambda: topic.strays.unsure == {1})
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        assert topic.scattered


@trio_test
async def test_what_is_known_survives_a_kill_with_the_events_that_it_is_about(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as broker:
        topic = await new(broker)
        await publish(topic, 1, *MINE)
        await folded(topic)
        await trio.to_thread.run_sync(broker.views.flush)
        await publish(topic, 1, ASTRAY)
        await folded(topic)
        as_killed(tmp_path / "a", tmp_path / "b")
        await trio.to_thread.run_sync(broker.views.flush)
        as_killed(tmp_path / "a", tmp_path / "c")
    for killed in ("b", "c"):
        async with running(tmp_path / killed) as broker:
            topic = broker.topic("t")
            assert topic.scattered
            await folded(topic)
            assert topic.scattered


@trio_test
@pytest.mark.parametrize("view", [True, False])
async def test_a_partition_that_is_out_of_service_may_have_strays_unless_its_view_knows(
    tmp_path: Path, view: bool
) -> None:
    """Its keys are not said to be absent. A topic without strays is served, except for that partition."""
    async with running(tmp_path) as broker:
        topic = await new(broker)
        await publish(topic, 1, *MINE)
        await publish(topic, 2, ASTRAY)
        await folded(topic)
    for file in (tmp_path / "topics" / "t-1").glob("*.log"):
        file.unlink()
    if not view:
        shutil.rmtree(tmp_path / "views")
    async with running(tmp_path) as broker:
        topic = broker.topic("t")
        assert topic.led(1).offline
        await broker.wait_for_views([topic.led(2)])
        assert topic.scattered == (not view)
        await broker.housekeeper.look(broker.housekeeper.sweep)
        await trio.testing.wait_all_tasks_blocked()
        assert topic.scattered == (not view), "nothing tells more"
        with pytest.raises(StorageError, match="out of service"):
            await broker.wait_for_views(topic.all_led())


@trio_test
async def test_added_partitions_let_keys_be_judged_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker, 1)
        await publish(topic, 0, *(b"k%d" % number for number in range(100)))
        await folded(topic)
        assert not topic.scattered
        await broker.alter_topic("t", {}, 3)
        assert topic.scattered
        await until(lambda: topic.strays.unsure == {0})
        where, found = await topic.newest([b"k1"], trio.lowlevel.checkpoint)
        assert where == [0]
        assert found[0] is not None
    async with running(tmp_path) as broker:
        assert broker.topic("t").strays.unsure == {0}


@trio_test
async def test_what_was_not_folded_yet_when_partitions_were_added_is_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is new, and its view has nothing yet."""
    gate, step = trio.Event(), Applier._step

    async def later(self: Applier) -> None:
        await gate.wait()
        await step(self)

    monkeypatch.setattr(Applier, "_step", later)
    async with running(tmp_path) as broker:
        topic = await new(broker, 1)
        await publish(topic, 0, ASTRAY)
        await broker.alter_topic("t", {}, COUNT)
        at_once = topic.scattered
        gate.set()
        await folded(topic)
        assert at_once, "nobody may be told that the key is absent"
        assert topic.scattered
    async with running(tmp_path) as broker:
        assert broker.topic("t").scattered


@trio_test
async def test_what_a_view_said_when_it_was_opened_counts_only_then(tmp_path: Path) -> None:
    """The catalog is older than the views, as a backup may have it that was taken while partitions were added."""
    data, older = tmp_path / "data", tmp_path / "older"
    at_home, moves = (
        next(key for key in MINE if partition_for(key, COUNT + 1) == partition) for partition in (1, COUNT)
    )
    async with running(data) as broker:
        await new(broker)
    shutil.copytree(data / "meta", older)
    async with running(data) as broker:
        await broker.alter_topic("t", {}, COUNT + 1)
        await publish(broker.topic("t"), 1, at_home)
        await folded(broker.topic("t"))
    shutil.rmtree(data / "meta")
    older.rename(data / "meta")
    async with running(data) as broker:
        topic = broker.topic("t")
        await until(lambda: not topic.scattered)
        await publish(topic, 1, moves)
        await broker.alter_topic("t", {}, COUNT + 1)
        assert topic.scattered, "the key would be absent"
        await folded(topic)
        await until(lambda: topic.strays.unsure == {1})


@trio_test
async def test_a_topic_is_not_scattered_any_more_once_its_strays_are_compacted_away(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker, **COMPACTED)
        partition = topic.led(1)
        await publish(topic, 1, *MINE, ASTRAY)
        await publish(topic, 1, ASTRAY, value=None)
        await folded(topic)
        assert topic.scattered
        keeper = broker.housekeeper
        with trio.fail_after(60):
            while partition.views.get(partition.number, ASTRAY) is not None:
                await partition.reshape(partition.log.roll)
                await keeper.clean(partition, broker.now_ms() + 1)
        await until(lambda: not topic.scattered)


@trio_test
async def test_a_tombstone_stays_while_it_deletes_something_in_another_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker, **COMPACTED)
        await publish(topic, 1, ASTRAY, timestamp=1)
        await publish(topic, 2, ASTRAY, value=None, timestamp=2)
        await publish(topic, 2, b"other", value=b"v", timestamp=2)
        partition, keeper = topic.led(2), broker.housekeeper
        for _ in range(3):
            await partition.reshape(partition.log.roll)
            await keeper.clean(partition, broker.now_ms() + 10)
        where, found = await topic.newest([ASTRAY], trio.lowlevel.checkpoint)
        assert where == [2], "the deleted key is alive again"
        assert [entry is not None and entry_offset(entry) for entry in found] == [0]


@trio_test
@pytest.mark.parametrize("trouble", ["folds", "gone"])
async def test_a_tombstone_stays_while_nobody_knows_what_the_other_partitions_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The tables are made anew: one partition is folded and compacted before another one is folded."""
    async with running(tmp_path) as broker:
        topic = await new(broker, **COMPACTED)
        await publish(topic, 1, ASTRAY, timestamp=1)
        await publish(topic, 2, ASTRAY, value=None, timestamp=2)
        await publish(topic, 2, b"other", timestamp=2)
    shutil.rmtree(tmp_path / "views")
    gate, step = trio.Event(), Applier._step

    async def later(self: Applier) -> None:
        if self._replica.index == 1:
            await gate.wait()
        await step(self)

    monkeypatch.setattr(Applier, "_step", later)
    monkeypatch.setattr(cleaning, "OTHERS_S", 0.01)
    async with running(tmp_path) as broker:
        topic = broker.topic("t")
        partition, keeper = topic.led(2), broker.housekeeper
        if trouble == "gone":
            topic.led(1).gone = StorageError("its log can't be opened")
        for _ in range(3):
            await partition.reshape(partition.log.roll)
            await keeper.clean(partition, broker.now_ms() + 10)
        topic.led(1).gone = None
        gate.set()
        await folded(topic)
        where, found = await topic.newest([ASTRAY], trio.lowlevel.checkpoint)
        assert where == [2], "the deleted key is alive again"
        assert [entry is not None and entry_offset(entry) for entry in found] == [0]


@trio_test
async def test_kafkas_consumers_begin_with_one_record_for_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of `TOPIC@latest`, whoever has read it before."""
    monkeypatch.setattr(latest_sets, "SLACK", 0.0)
    async with running(tmp_path) as broker:
        topic = await new(broker)

        async def table() -> dict[bytes, tuple[int, bytes]]:
            found: dict[bytes, tuple[int, bytes]] = {}
            for partition in topic.local.values():
                consumer = Consumer(room=1 << 20)
                await consumer.finish(broker.latest, partition)
                for key, (_, value) in consumer.held.items():
                    assert key not in found, f"{key!r} is in two partitions"
                    found[key] = partition.index, value
            return found

        await publish(topic, 1, *MINE, value=b"at home", timestamp=1)
        assert await table() == dict.fromkeys(MINE, (1, b"at home"))
        await publish(topic, 3, MINE[0], MINE[1], MINE[2], value=b"elsewhere", timestamp=2)
        await publish(topic, 1, MINE[1], value=b"again", timestamp=3)
        await publish(topic, 0, MINE[2], value=None, timestamp=3)
        await publish(topic, 0, ASTRAY, value=b"elsewhere", timestamp=1)
        expected = dict.fromkeys(MINE[3:], (1, b"at home"))
        expected |= {MINE[0]: (3, b"elsewhere"), MINE[1]: (1, b"again"), ASTRAY: (0, b"elsewhere")}
        for _ in range(2):
            assert await table() == expected


async def refusals(laters: Iterable[Later[StoredAt]]) -> list[str]:
    """What is said to those whose condition does not hold."""
    found = []
    with trio.fail_after(60):
        for later in laters:
            try:
                await later.wait()
            except OffsetMismatch as error:
                found.append(str(error))
    return found


@trio_test
@pytest.mark.parametrize("first", [1, 2])
async def test_of_two_who_claim_a_key_in_two_partitions_at_once_one_has_it(tmp_path: Path, first: int) -> None:
    """The first stray of a topic comes with a condition, beside one in the key's own partition."""
    async with running(tmp_path) as broker:
        topic = await new(broker)
        data = batch.encode([ASTRAY], [b"v"], timestamps=1)
        order = [first, 3 - first]
        laters = [topic.led(index).publish(data, [(0, ABSENT)]) for index in order]
        [refusal] = await refusals(laters)
        assert "another partition" in refusal


@trio_test
@pytest.mark.parametrize("append_time", [False, True])
async def test_who_claims_a_key_by_a_clock_behind_its_deletion_elsewhere_does_not_have_it(
    tmp_path: Path, append_time: bool
) -> None:
    """By the table the key would still be deleted, and the next one would claim it as well."""
    async with running(tmp_path) as broker:
        topic = await new(broker)
        if append_time:
            await broker.alter_topic("t", {"message.timestamp.type": "LogAppendTime"}, None)
        deleted = batch.encode([ASTRAY], [None], timestamps=1_000)
        await topic.led(1).publish(deleted).wait()
        await trio.sleep(0.01)  # the broker's clock goes on

        async def claim(index: int, time: int) -> bool:
            data = batch.encode([ASTRAY], [b"v"], timestamps=time)
            try:
                await topic.led(index).publish(data, [(0, ABSENT)]).wait()
            except OffsetMismatch:
                return False
            return True

        home = partition_for(ASTRAY, COUNT)
        other = next(index for index in range(COUNT) if index not in (home, 1))
        claims = [
            await claim(index, time) for index, time in ((other, 999), (home, 999), (home, 1_001), (other, 1_002))
        ]
        assert claims == ([True, False, False, False] if append_time else [False, False, True, False])
        (where,), (entry,) = await topic.newest([ASTRAY], trio.lowlevel.checkpoint)
        assert where == (other if append_time else home)
        assert entry is not None
        assert not is_tombstone(entry)


@trio_test
@pytest.mark.parametrize("meanwhile", ["looked through", "partitions added"])
async def test_one_that_is_about_to_be_written_counts_until_it_is(tmp_path: Path, meanwhile: str) -> None:
    """The first stray of a topic comes with a condition. Between the decision and the write, the view is looked
    through, or partitions are added."""
    async with running(tmp_path) as broker:
        topic = await new(broker)
        key = next(
            key for key in (b"k%d" % n for n in range(400)) if {partition_for(key, n) for n in (COUNT, 5)} == {2}
        )
        data = batch.encode([key], [b"v"], timestamps=1)
        await topic.led(1).writing.acquire()  # the stray is decided, and can't be written yet
        laters = [topic.led(1).publish(data, [(0, ABSENT)])]
        await until(lambda: topic.scattered)
        await trio.sleep(0.1)
        if meanwhile == "looked through":
            topic.led(1).applier.strays.tend()
        else:
            await broker.alter_topic("t", {}, 5)
        await trio.sleep(0.1)
        laters.append(topic.led(2).publish(data, [(0, ABSENT)]))
        await trio.sleep(0.1)
        topic.led(1).writing.release()
        assert len(await refusals(laters)) == 1, "both have the key"
        assert topic.scattered


@trio_test
async def test_what_was_decided_before_there_were_strays_counts_for_who_decides_after(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker)
        data = batch.encode([ASTRAY], [b"v"], timestamps=1)
        await topic.led(2).writing.acquire()  # the write is decided, and can't be done yet
        laters = [topic.led(2).publish(data, [(0, ABSENT)])]
        await trio.sleep(0.1)
        await publish(topic, 3, MINE[0])
        assert topic.scattered
        laters.append(topic.led(1).publish(data, [(0, ABSENT)]))
        await trio.sleep(0.1)
        topic.led(2).writing.release()
        assert len(await refusals(laters)) == 1, "both have the key"


@trio_test
async def test_what_was_decided_among_fewer_partitions_counts_for_who_decides_among_more(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker)
        some = (b"k%d" % number for number in range(400))
        key = next(key for key in some if (partition_for(key, COUNT), partition_for(key, 5)) == (2, 4))
        data = batch.encode([key], [b"v"], timestamps=1)
        await topic.led(2).writing.acquire()  # the write is decided, and can't be done yet
        laters = [topic.led(2).publish(data, [(0, ABSENT)])]
        await trio.sleep(0.1)
        await broker.alter_topic("t", {}, 5)
        await trio.sleep(0.1)
        laters.append(topic.led(4).publish(data, [(0, ABSENT)]))
        await trio.sleep(0.1)
        topic.led(2).writing.release()
        assert len(await refusals(laters)) == 1, "both have the key"


@trio_test
async def test_views_with_strays_judge_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        topic = await new(broker)
        await publish(topic, 1, ASTRAY)

        def judged(*_: object) -> bool:
            raise AssertionError("it is known")

        monkeypatch.setattr(strays_module, "any_elsewhere", judged)
        await publish(topic, 1, *MINE)
        await folded(topic)
