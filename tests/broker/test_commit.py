"""Group commit where the disk refuses to sync."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from krappy import batch
from krappy.errors import StorageError
from krappy.store import disk
from tests.broker.engine import publish, running


def refuse(fd: int) -> None:
    raise OSError(errno.EIO, "the disk is broken")


@pytest.mark.parametrize("size", [1, 400_000], ids=["with its write", "beside the next write"])
@trio_test
async def test_a_retry_of_what_was_never_synced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The original stands in the file and will never be acknowledged: whoever asks again is told so at once."""
    async with running(tmp_path, durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].partition(0)
        await publish(partition, 1, producer_id=7, producer_epoch=0, base_sequence=0)
        sent = batch.encode(None, [b"x" * size], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=1)
        with monkeypatch.context() as broken:
            broken.setattr(disk, "_datasync", refuse)
            with pytest.raises(StorageError, match="a sync failed"):
                await partition.publish(sent).wait()
        with trio.fail_after(30), pytest.raises(StorageError, match="a sync failed"):
            await partition.publish(sent).wait()
        stored = await partition.publish(
            batch.encode(None, [b"0"], timestamps=1_000, producer_id=7, producer_epoch=0, base_sequence=0)
        ).wait()
        assert stored.offset == 0
        assert stored.duplicate  # what was synced before is known again
