"""Below which offset deletions may be missing from a log: its own cleaner took them, or that of the log from which it
was copied."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import msgpack

from krappy.core.stability import marker
from krappy.records import batch
from krappy.store.checkpoint import Checkpoint
from krappy.store.format import CHECKPOINT, CHECKPOINT_HEAD, CHECKPOINT_MAGIC
from krappy.store.log import Log
from tests.store.compacted import CONFIG
from tests.store.faulty_disk import Everything, FaultyDisk
from tests.store.logs import FOLDER, SMALL, opened
from tests.store.test_append_as_is import Batch, batches, placed

NOW = 1_000_000


def emptied(offset: int, count: int) -> Batch:
    """A batch whose first record a cleaner has removed."""
    _, data = placed(offset, *[b"v"] * count)
    kept = batch.keep(data, range(offset + 1, offset + count))
    assert kept is not None
    return batch.check(kept), kept


def test_a_hole_or_a_batch_that_lacks_records_is_noted(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    log.append_as_is([placed(0, b"a"), placed(1, b"b", b"c")], 1)
    assert log.gone_below == 0
    log.append_as_is([placed(7, b"d", b"e"), placed(9, b"f")], 1)
    assert log.gone_below == 7
    log.append_as_is([emptied(10, 3), placed(13, b"g")], 1)
    assert log.gone_below == 13
    log.close()
    again = opened(tmp_path / "log")
    assert again.gone_below == 13
    again.truncate(9)
    assert again.gone_below == 9
    again.lack(4)
    assert again.gone_below == 9
    again.lack(11)
    again.checkpoint()
    again.close()
    last = opened(tmp_path / "log")
    assert last.gone_below == 11
    last.close()


def test_what_was_fetched_behind_the_checkpoint_is_found_again() -> None:
    """The checkpoint does not tell of its holes: they are seen when the batches are read."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, SMALL, disk=disk)
    log.append_as_is([placed(0, b"a"), placed(4, b"b")], 1)
    log.checkpoint()
    log.append_as_is([placed(20, b"c"), emptied(21, 2), placed(23, b"d")], 1)
    log.sync()
    disk.crash(Everything())
    again = Log.open(FOLDER, SMALL, disk=disk)
    assert again.end_offset == 24
    assert again.gone_below == 23
    again.close()


def test_markers_are_noted_before_they_go_and_may_be_kept() -> None:
    disk = FaultyDisk()
    log = Log.open(FOLDER, replace(CONFIG, delete_retention_ms=0), disk=disk)
    log.append_as_is([placed(0, b"a")], 1)
    data = marker(7, 0, True, 5)
    log.append_as_is([placed(1, data=data), placed(2, b"b")], 1)
    log.roll()
    log.append_as_is([placed(3, b"c")], 1)
    log.sync()
    keep_all = lambda candidates: [True] * len(candidates)  # noqa: E731
    log.clean(keep_all, 3, NOW)  # this finds that nothing is left of the marker's transaction
    log.clean(keep_all, 3, NOW + 1, markers_upto=1)
    assert (log.gone_below, [header.base_offset for header, _ in batches(log)]) == (0, [0, 1, 2, 3])
    log.clean(keep_all, 3, NOW + 1, markers_upto=2)
    assert (log.gone_below, [header.base_offset for header, _ in batches(log)]) == (2, [0, 2, 3])
    disk.crash(Everything())
    again = Log.open(FOLDER, CONFIG, disk=disk)
    assert again.gone_below == 2
    again.close()


def test_an_earlier_version_told_nothing(tmp_path: Path) -> None:
    """So everything may be missing that its cleaner has seen, or where holes may be."""
    log = opened(tmp_path / "log")
    log.append_as_is([placed(0, b"a"), placed(4, b"b"), placed(6, b"c")], 1)
    log.close()
    head, body = CHECKPOINT_HEAD.size, (tmp_path / "log" / CHECKPOINT).read_bytes()
    fields = msgpack.unpackb(body[head:])
    assert fields.pop("gone_below") == 6
    data = msgpack.packb(fields)
    found = Checkpoint.unpack(CHECKPOINT_HEAD.pack(CHECKPOINT_MAGIC, zlib.crc32(data), len(data)) + data)
    assert found.gone_below == 7
