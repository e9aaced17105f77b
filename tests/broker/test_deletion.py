"""What is left of a deleted topic after a kill on the way."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from krappy.broker.topics import deletion
from krappy.core.kafka.offset import Offset
from krappy.errors import StorageError
from krappy.store.disk import Disk
from tests.broker.engine import as_killed, publish, running


@trio_test
async def test_groups_begin_anew_in_a_topic_that_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position in the old topic would make a group skip the first events of the new one."""
    close = deletion.close

    async def killed_before(*given: Any) -> None:
        as_killed(tmp_path / "data", tmp_path / "killed")
        await close(*given)

    monkeypatch.setattr(deletion, "close", killed_before)
    async with running(tmp_path / "data") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await publish(topic.led(0), 5)
        positions = broker.kafka_groups.offsets
        found = positions.check("kafka", "", -1, None)
        await positions.commit(found, {("t", 0): Offset(5, -1, "", broker.clock.steady_ms())})
        await broker.groups.commit("native", [("t", 0, 5)])
        await broker.delete_topic("t")
    for folder in ("data", "killed"):
        async with running(tmp_path / folder) as broker:
            topic, _ = await broker.create_topic("t", 1, {})
            await publish(topic.led(0), 9)
            kafka = broker.kafka_groups.get("kafka")
            assert kafka is None or not kafka.offsets
            assert broker.groups.positions("native") == []


@trio_test
async def test_a_disk_that_refuses_a_sync_leaves_the_rest_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal ends neither housekeeping nor a start; whoever makes a topic of that name gets the error."""
    refused, taken = True, 0  # `taken`: how many syncs succeed before
    sync = Disk.fsync_dir
    said: list[str] = []

    def fsync_dir(disk: Disk, path: Path) -> None:
        nonlocal taken
        if refused and path.name == "topics":
            taken -= 1
            if taken < 0:
                raise OSError(errno.EMFILE, "Too many open files")
        sync(disk, path)

    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        monkeypatch.setattr(Disk, "fsync_dir", fsync_dir)
        await broker.delete_topic("t")
        await broker.changes.finish_deletions()
        with pytest.raises(StorageError, match="Too many open files"):
            await broker.create_topic("t", 1, {})
    taken = 1  # the start's own sync, without which it would promise what it can't keep
    async with running(tmp_path, lambda event, **_: said.append(event)) as broker:
        assert said.count("deletion_unfinished") == 1
        assert "internal_error" not in said
        refused = False
        await broker.changes.finish_deletions()
        assert not broker.catalog.deleting()
        assert (await broker.create_topic("t", 1, {}))[1]
