"""A topic with a compression.type of its own: where batches are compressed again, and which of them are refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from krappy.broker.partition import appender
from krappy.broker.partition.commit import INLINE
from krappy.broker.partition.pending import Pending
from krappy.errors import RecordTooLarge
from krappy.records import batch, codecs
from tests.broker.engine import read_all, running


@trio_test
async def test_much_in_small_batches_is_compressed_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recompress, where = Pending.recompress, []

    def noted(self: Pending, *args: Any) -> None:
        where.append(threading.get_ident())
        recompress(self, *args)

    monkeypatch.setattr(Pending, "recompress", noted)
    monkeypatch.setattr(appender, "MAX_DRAIN", 100_000)  # so that some wait for a drain after the next
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 1, {"compression.type": "gzip", "max.message.bytes": "9000"})
        values = [[b"%d.%d" % (number, row) + b"x" * 100 for row in range(40)] for number in range(100)]
        batches = [batch.encode([b"k"] * 40, some, timestamps=1) for some in values]
        assert max(map(len, batches)) <= INLINE < sum(map(len, batches))
        laters = [topic.led(0).publish(data) for data in batches]
        assert [(await later.wait()).offset for later in laters] == [number * 40 for number in range(100)]
        rows = await read_all(topic.led(0))
        assert [row.value for row in rows] == [value for some in values for value in some]
        assert len(where) == 100
        assert threading.get_ident() not in where


@trio_test
async def test_batches_that_open_to_much_are_recompressed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time over all partitions: each takes several times the memory that it opens to."""
    recompress, lock, waited = Pending.recompress, threading.Lock(), []

    def noted(self: Pending, *args: Any) -> None:
        waited.append(not lock.acquire(blocking=False))
        try:
            time.sleep(0.05)
            recompress(self, *args)
        finally:
            if not waited[-1]:
                lock.release()

    monkeypatch.setattr(Pending, "recompress", noted)
    data = batch.encode([b"k"], [bytes(4 << 20)], timestamps=1, codec=codecs.ZSTD)
    async with running(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", 4, {"compression.type": "lz4"})
        laters = [partition.publish(data) for partition in topic.all_led()]
        for later in laters:
            await later.wait()
    assert waited == [False] * 4


@trio_test
async def test_a_batch_that_is_too_large_then_is_refused_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        settings = {"compression.type": "uncompressed", "max.message.bytes": "9000"}
        topic, _ = await broker.create_topic("t", 1, settings)
        partition = topic.led(0)
        small = batch.encode([b"k"], [b"v"], timestamps=1, codec=codecs.GZIP)
        large = batch.encode([b"k"], [b"v" * 20_000], timestamps=1, codec=codecs.GZIP)
        laters = [partition.publish(data) for data in (small, large, small)]
        assert (await laters[0].wait()).offset == 0
        with pytest.raises(RecordTooLarge):
            await laters[1].wait()
        assert (await laters[2].wait()).offset == 1
