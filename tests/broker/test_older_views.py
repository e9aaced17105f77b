"""Views that are older than their logs expect: their files are an older copy, or the end of their MANIFEST is gone,
which RocksDB takes for a write that a loss of power cut short. Events that have left the logs since then must not be
served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.entries.entry import is_tombstone, pack_entry
from krappy.records import batch
from krappy.store import journal
from krappy.store.views import Views
from tests.broker.engine import as_killed, publish, running

SLOW = {"cleaner_backoff_ms": 3_600_000, "retention_check_ms": 3_600_000, "durability": "os"}
CONFIG = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "segment.bytes": "400",
    "delete.retention.ms": "0",
    "min.cleanable.dirty.ratio": "0",
}
KEYS = [b"k%d" % number for number in range(8)]

Reports = list[tuple[str, dict[str, Any]]]


async def write(partition: Partition, value: bytes | None, *keys: bytes) -> None:
    for key in keys:
        await partition.publish(batch.encode([key], [value], timestamps=1_000)).wait()


async def living(broker: LocalBroker) -> set[bytes]:
    """Which of the keys the table has."""
    partition = broker.topic("t").led(0)
    await broker.wait_for_views([partition])
    entries = {key: partition.look_up(key) for key in (*KEYS, b"other", b"new")}
    return {key for key, entry in entries.items() if entry is not None and not is_tombstone(entry)}


async def clean(broker: LocalBroker, partition: Partition) -> None:
    """Cleans the log until the tombstones have gone."""
    for later in (1, 2):  # the first cleaning sees them, the second takes them
        partition.log.roll()
        await broker.housekeeper.clean(partition, broker.now_ms() + later * 1000)
        await write(partition, b"v", b"other")


async def delete(broker: LocalBroker, partition: Partition) -> None:
    await partition.delete_records(partition.high_watermark)


def older_copy(data: Path, before: Path) -> None:
    shutil.rmtree(data / "views")
    shutil.copytree(before / "views", data / "views")


def torn(data: Path, before: Path) -> None:
    """Cuts the last record of the MANIFEST that tells of a new file."""
    folder = data / "views"
    manifest = folder / (folder / "CURRENT").read_text().strip()
    content, at, ends = manifest.read_bytes(), 0, []
    while (size := journal._record(content, at)) > 0:
        ends.append((at, size))
        at += size
    os.truncate(manifest, [at for at, size in ends if size > 60][-1] + 3)


@pytest.mark.parametrize("harm", [older_copy, torn])
@pytest.mark.parametrize("leave", [clean, delete])
def test_what_left_the_log_since_is_not_there_again(
    tmp_path: Path,
    leave: Callable[[LocalBroker, Partition], Awaitable[None]],
    harm: Callable[[Path, Path], None],
) -> None:
    reports: Reports = []
    data, killed = tmp_path / "data", tmp_path / "killed"

    async def make() -> None:
        async with running(data, **SLOW) as broker:
            topic, _ = await broker.create_topic("t", 1, CONFIG)
            await write(topic.led(0), b"v", *KEYS)
        shutil.copytree(data, tmp_path / "before")
        async with running(data, **SLOW) as broker:
            partition = broker.topic("t").led(0)
            await write(partition, None, *KEYS)
            await leave(broker, partition)
            await write(partition, b"v", b"other")
            assert await living(broker) == {b"other"}
            as_killed(data, killed)

    async def look() -> None:
        async with running(killed, lambda event, **facts: reports.append((event, facts)), **SLOW) as broker:
            assert await living(broker) == {b"other"}
            await write(broker.topic("t").led(0), b"v", b"new")
            assert await living(broker) == {b"other", b"new"}

    trio.run(make)
    harm(killed, tmp_path / "before")
    trio.run(look)
    assert "view_older_than_log" in [event for event, _ in reports]


def test_a_view_that_is_being_folded_anew_goes_on_after_a_start(tmp_path: Path) -> None:
    """Such a view ends below what was cleaned, too, but was begun after the cleaning."""
    reports: Reports = []

    async def make() -> int:
        async with running(tmp_path, **SLOW) as broker:
            topic, _ = await broker.create_topic("t", 1, CONFIG)
            partition = topic.led(0)
            await write(partition, b"v", *KEYS)
            await clean(broker, partition)
            return partition.number

    async def look() -> None:
        async with running(tmp_path, lambda event, **facts: reports.append((event, facts)), **SLOW) as broker:
            assert await living(broker) == {*KEYS, b"other"}

    number = trio.run(make)
    views = Views(tmp_path / "views", anew=True)
    views.note_begun(number, 100)
    views.apply(number, {key: pack_entry(offset, 1_000, b"v") for offset, key in enumerate(KEYS[:4])}, 4)
    views.close()
    trio.run(look)
    assert not [event for event, _ in reports if event == "view_older_than_log"]


def test_a_view_that_lacks_only_what_is_absent_is_not_older_than_its_log(tmp_path: Path) -> None:
    """Events without keys, which no view notes, expire under `delete`; then the topic becomes compacted, and the broker
    is killed."""
    reports: Reports = []

    async def make() -> None:
        async with running(tmp_path / "data", **SLOW) as broker:
            topic, _ = await broker.create_topic("t", 1, {**CONFIG, "cleanup.policy": "delete"})
            partition = topic.led(0)
            await write(partition, b"v", *KEYS)
            await partition.view_wait(None, 60)
            await publish(partition, 5)
            await delete(broker, partition)
            await broker.alter_topic("t", {"cleanup.policy": "compact,delete"}, None)
            await write(partition, b"v", b"new")
            as_killed(tmp_path / "data", tmp_path / "killed")

    async def look() -> None:
        killed = tmp_path / "killed"
        async with running(killed, lambda event, **facts: reports.append((event, facts)), **SLOW) as broker:
            assert await living(broker) == {b"new"}

    trio.run(make)
    trio.run(look)
    assert not [event for event, _ in reports if event == "view_older_than_log"]
