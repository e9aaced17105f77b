"""Events with timestamps as far apart as 64 bits allow, stored before a topic had limits: they cost nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from krappy.broker.groups.group_reads import Read, join
from krappy.broker.partition.pending import Singles
from krappy.core.leases import Lease
from krappy.errors import StorageError
from krappy.records import batch
from krappy.types import Record
from tests.broker.engine import read_all, running

TOP = 2**63 - 1
ANY = {"message.timestamp.after.max.ms": TOP}


@trio_test
async def test_they_share_a_batch_with_others(tmp_path: Path) -> None:
    """As on the way to a dead-letter topic, to which somebody else publishes, too."""
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, ANY))[0].led(0)
        times = [TOP, -1, 1_000]
        laters = [partition.publish_record(Record(b"v", b"k", (), time), taken=True) for time in times]
        stored = [await later.wait() for later in laters]
        assert [(each.offset, each.timestamp) for each in stored] == list(enumerate(times))
        assert [event.timestamp for event in await read_all(partition)] == times


@trio_test
async def test_a_member_gets_a_part_of_their_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, ANY))[0].led(0)
        times = [TOP, -1] * 50
        data = batch.encode(None, [bytes(200)] * 100, timestamps=times)
        await partition.publish(data).wait()
        read = Read(0, await partition.read(0, 1 << 20), keys=False)
        columns = batch.decode(join(read.pieces, [Lease(10, 14, 1)]))
        assert (list(columns.offsets), list(columns.timestamps)) == ([10, 11, 12, 13, 14], times[10:15])


@trio_test
async def test_a_batch_that_can_not_be_made_costs_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever fault of the broker it is, only the publishers of that batch are refused."""
    reported: list[str] = []
    async with running(tmp_path, lambda event, **facts: reported.append(event)) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)

        def make(self: Singles, codec: int) -> None:
            raise ValueError("a mistake")

        monkeypatch.setattr(Singles, "make", make)
        wrong = partition.publish_record(Record(b"v", b"k", (), 1_000))
        good = partition.publish(batch.encode([b"a"], [b"v"], timestamps=1_000))
        with pytest.raises(StorageError, match="a mistake"):
            await wrong.wait()
        assert (await good.wait()).offset == 0
        assert "internal_error" in reported
