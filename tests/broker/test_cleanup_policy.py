"""What is absent from a table stays absent when its topic's cleanup.policy changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.overrides import OverrideStore
from krappy.broker.partition.partition import Partition
from krappy.entries.entry import entry_offset
from krappy.store.views import Views
from tests.broker.engine import as_killed, publish, running

KEYS = [b"a", b"b", b"c"]
Switch = Callable[[LocalBroker], Awaitable[None]]


async def live(partition: Partition) -> dict[bytes, int]:
    """The table, by lookups and by a scan."""
    with trio.fail_after(60):
        assert await partition.view_wait(None, 60)
    looked_up = {key: partition.look_up(key) for key in KEYS}
    found = {key: entry_offset(entry) for key, entry in looked_up.items() if entry is not None}
    snapshot = partition.views.snapshot()
    rows = snapshot.rows(partition.number, log_start=partition.expired_below)
    snapshot.close()
    assert dict(zip(rows.keys, map(entry_offset, rows.entries), strict=True)) == found
    return found


async def of_the_topic(broker: LocalBroker) -> None:
    await broker.alter_topic("t", {"cleanup.policy": "compact"}, None)


async def of_both_kinds(broker: LocalBroker) -> None:
    await broker.alter_topic("t", {"cleanup.policy": "compact,delete"}, None)


async def of_all_topics(broker: LocalBroker) -> None:
    await broker.dynamic.alter("", {"log.cleanup.policy": "compact"})


@pytest.mark.parametrize("switch", [of_the_topic, of_both_kinds, of_all_topics])
@trio_test
async def test_what_was_deleted_does_not_come_back(tmp_path: Path, switch: Switch) -> None:
    async with running(tmp_path / "data") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 3, KEYS)
        assert await live(partition) == {b"a": 0, b"b": 1, b"c": 2}
        await partition.delete_records(2)
        partition.views.flush()
        await switch(broker)
        assert await live(partition) == {b"c": 2}
        as_killed(tmp_path / "data", tmp_path / "killed")  # what a kill leaves: views have no write-ahead log
        await publish(partition, 1, [b"a"])
        assert await live(partition) == {b"a": 3, b"c": 2}
    async with running(tmp_path / "data") as broker:
        partition = broker.topic("t").led(0)
        assert await live(partition) == {b"a": 3, b"c": 2}
        await broker.alter_topic("t", {"cleanup.policy": "delete", "view.enable": False}, None)
        await broker.alter_topic("t", {"cleanup.policy": "compact", "view.enable": True}, None)
        assert await live(partition) == {b"a": 3, b"c": 2}
    async with running(tmp_path / "killed") as broker:
        assert await live(broker.topic("t").led(0)) == {b"c": 2}


@trio_test
async def test_what_was_deleted_does_not_come_back_by_a_start_with_other_defaults(tmp_path: Path) -> None:
    """The start with them is killed at each moment at which what is on disk changes."""
    data = tmp_path / "data"
    async with running(data) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 3, KEYS)
        await partition.delete_records(2)
    killed = 0

    def killing(write: Callable[..., None]) -> Callable[..., None]:
        def killed_before_and_after(*given: object) -> None:
            nonlocal killed
            as_killed(data, tmp_path / f"killed-{killed}")
            write(*given)
            as_killed(data, tmp_path / f"killed-{killed + 1}")
            killed += 2

        return killed_before_and_after

    async def killing_at_save(store: OverrideStore, name: str, *settings: Mapping[str, str]) -> None:
        nonlocal killed
        as_killed(data, tmp_path / f"killed-{killed}")
        await save(store, name, *settings)
        as_killed(data, tmp_path / f"killed-{killed + 1}")
        killed += 2

    save = OverrideStore.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Views, "flush", killing(Views.flush))
        patch.setattr(OverrideStore, "save", killing_at_save)
        async with running(data, log_cleanup_policy="compact") as broker:
            assert broker.topic("t").config.compact
            assert await live(broker.topic("t").led(0)) == {b"c": 2}
    assert killed >= 4
    for each in range(killed):
        for policy in ("compact", "delete", "compact,delete"):
            async with running(tmp_path / f"killed-{each}", log_cleanup_policy=policy) as broker:
                assert await live(broker.topic("t").led(0)) == {b"c": 2}


@trio_test
async def test_what_outlived_its_event_is_absent_under_delete_and_stays_so(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {"cleanup.policy": "compact,delete"}))[0].led(0)
        await publish(partition, 3, KEYS)
        await partition.delete_records(2)
        assert await live(partition) == {b"a": 0, b"b": 1, b"c": 2}
        await broker.alter_topic("t", {"cleanup.policy": "delete"}, None)
        assert await live(partition) == {b"c": 2}
        await broker.alter_topic("t", {"cleanup.policy": "compact,delete"}, None)
        assert await live(partition) == {b"c": 2}
        await partition.delete_records(3)
        assert await live(partition) == {b"c": 2}
