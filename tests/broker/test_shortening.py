"""Retention and DeleteRecords where the view can't follow: they free the disk all the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.applier import READ
from krappy.broker.partition.partition import Partition
from krappy.broker.topics.topic import Topic
from krappy.entries.entry import entry_offset, is_tombstone
from krappy.records import batch
from krappy.store.pool import POOL
from tests.broker.engine import as_killed, publish, running, somebody_waits, until

KEYS = [b"k%d" % number for number in range(10)]


async def damaged(broker: LocalBroker, policy: str) -> Partition:
    """A partition of 20 batches of ten events. A batch in the first segment can't be read, and the view stops there."""
    given = {"segment.bytes": 500, "retention.ms": -1, "view.enable": False}
    partition = (await broker.create_topic("t", 1, given))[0].led(0)
    for _ in range(20):
        await publish(partition, 10, KEYS)
    first = next(iter(partition.log._segments))
    data = bytearray(first.path().read_bytes())
    data[-1] ^= 1
    first.path().write_bytes(data)
    POOL.discard(first)
    await broker.alter_topic("t", {"view.enable": True, "cleanup.policy": policy, "retention.bytes": 1000}, None)
    await until(lambda: partition.view_failed)
    return partition


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
@pytest.mark.parametrize("by", ["retention", "DeleteRecords"])
@trio_test
async def test_what_goes_takes_damage_along(tmp_path: Path, policy: str, by: str) -> None:
    async with running(tmp_path / "data", retention_check_ms=3_600_000) as broker:
        partition = await damaged(broker, policy)
        if by == "retention":
            await broker.housekeeper.retain(partition)
            assert partition.start_offset > 100
        else:
            assert await partition.delete_records(195) == 195
        assert await partition.view_wait(None, 30), "the table answers again"
        live = {key: entry_offset(entry) for key in KEYS if (entry := partition.look_up(key))}
        wanted = {key: at for at, key in enumerate(KEYS, 190) if at >= partition.start_offset}
        assert live == wanted
    async with running(tmp_path / "data") as broker:
        partition = broker.topic("t").led(0)
        assert await partition.view_wait(None, 30)
        live = {key: entry_offset(entry) for key in KEYS if (entry := partition.look_up(key))}
        assert live == wanted


@trio_test
async def test_a_table_that_is_behind_keeps_no_expired_event(tmp_path: Path) -> None:
    """Under cleanup.policy=delete its entries of such events are absent anyway, so nothing waits for it."""
    async with running(tmp_path, retention_check_ms=3_600_000) as broker:
        config = {"segment.bytes": 500, "retention.bytes": 1000}
        partition = (await broker.create_topic("t", 1, config))[0].led(0)
        broker.views.busy = lambda: True  # type: ignore[method-assign]  # as on a full disk
        for _ in range(20):
            await publish(partition, 10, KEYS)
        await broker.housekeeper.retain(partition)
        assert partition.start_offset > 100
        assert await partition.delete_records(195) == 195
        del broker.views.busy
        assert await partition.view_wait(None, 30)
        live = {key: entry_offset(entry) for key in KEYS if (entry := partition.look_up(key))}
        assert live == {key: at for at, key in enumerate(KEYS, 190) if at >= 195}


@pytest.mark.parametrize("of", ["the topic", "all topics"])
@trio_test
async def test_a_table_that_is_to_outlive_its_events_has_taken_them_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Else it is without them. Events are deleted while their topic becomes compacted, and a kill comes right then."""
    keep_absent, configure = Topic.prepare, Topic.configure
    async with running(tmp_path / "data", retention_check_ms=3_600_000) as broker, trio.open_nursery() as nursery:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 1, [b"key"])
        await partition.flush_view()

        async def prepared(*args: Any) -> None:
            """What has expired until now is known, on disk; then more comes, and is deleted."""
            await keep_absent(*args)
            await publish(partition, 1, [b"key"])
            assert await partition.view_wait(None, 60)
            nursery.start_soon(partition.delete_records, 2)
            await until(lambda: partition.start_offset == 2 or somebody_waits(broker.shrinking))

        async def kept(*args: Any) -> None:
            """The settings are stored, and not in force yet."""
            as_killed(tmp_path / "data", tmp_path / "killed")
            await configure(*args)

        with monkeypatch.context() as patch:
            patch.setattr(Topic, "prepare", prepared)
            patch.setattr(Topic, "configure", kept)
            if of == "the topic":
                await broker.alter_topic("t", {"cleanup.policy": "compact,delete"}, None)
            else:
                await broker.dynamic.alter("", {"log.cleanup.policy": "compact,delete"})
        await until(lambda: partition.start_offset == 2)
        assert partition.config.compact
        entry = partition.look_up(b"key")
        assert entry is None or entry_offset(entry) == 1
    async with running(tmp_path / "killed") as broker:
        partition = broker.topic("t").led(0)
        assert partition.config.compact
        assert await partition.view_wait(None, 60)
        entry = partition.look_up(b"key")
        assert entry is None or entry_offset(entry) == 1, "an old value is back"


async def with_a_deletion(broker: LocalBroker, given: dict[str, Any]) -> Partition:
    """A partition with a value of a key at offset 0, and its deletion at 4, in another read of the log."""
    partition = (await broker.create_topic("t", 1, given))[0].led(0)
    for key, value in [(b"key", b"value"), *[(b"other", bytes(READ - 1000))] * 3, (b"key", None), (b"other", b"last")]:
        await partition.publish(batch.encode([key], [value], timestamps=1_000)).wait()
    return partition


@pytest.mark.parametrize("by", ["turned on", "made anew"])
@trio_test
async def test_a_view_that_begins_while_events_go_folds_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """If it had folded some of them, it would keep a value whose deletion it never saw."""
    given = {"view.enable": False} if by == "turned on" else {"cleanup.policy": "compact,delete"}
    async with running(tmp_path, retention_check_ms=3_600_000) as broker, trio.open_nursery() as nursery:
        partition = await with_a_deletion(broker, given)
        save, saving, go_on = partition.log._save, threading.Event(), threading.Event()

        def slowly(*args: Any) -> None:
            saving.set()
            assert go_on.wait(60)
            save(*args)

        monkeypatch.setattr(partition.log, "_save", slowly)
        nursery.start_soon(partition.delete_records, 5)
        await until(saving.is_set)  # it is decided that they go
        broker.views.busy = lambda: 0 < partition.applied < 5  # type: ignore[method-assign]  # folds the first and waits
        if by == "turned on":
            config: dict[str, Any] = {"view.enable": True, "cleanup.policy": "compact,delete"}
            nursery.start_soon(broker.alter_topic, "t", config, None)
        else:
            broker.views.damaged = "a block"
        await until(lambda: somebody_waits(broker.shrinking) or 0 < partition.applied < 5)
        go_on.set()
        await until(lambda: partition.start_offset == 5)
        del broker.views.busy
        await until(lambda: partition.config.compact and not broker.views.damaged)
        assert await partition.view_wait(None, 60)
        assert partition.look_up(b"key") is None


@trio_test
async def test_what_a_view_made_anew_has_not_folded_yet_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view was ready for the deletion, and then it was damaged."""
    async with running(tmp_path, retention_check_ms=3_600_000) as broker:
        partition = await with_a_deletion(broker, {"cleanup.policy": "compact,delete"})
        make_ready, times = Partition._ready_view, 0

        async def ready(*args: Any) -> None:
            nonlocal times
            times += 1
            if times > 1:
                del broker.views.busy
            await make_ready(*args)
            if times == 1:
                broker.views.busy = lambda: 0 < partition.applied < 5  # type: ignore[method-assign]
                broker.views.damaged = "a block"
                await until(lambda: 0 < partition.applied < 5)  # the new view has the first event

        monkeypatch.setattr(Partition, "_ready_view", ready)
        assert await partition.delete_records(5) == 5
        if times == 1:
            del broker.views.busy
        assert await partition.view_wait(None, 60)
        entry = partition.look_up(b"key")
        assert entry is None or is_tombstone(entry)
