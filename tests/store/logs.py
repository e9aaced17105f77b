"""What the tests of the log share: batches to write, and plain ways to look at what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from krappy.records import batch
from krappy.records.batch import BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store.disk import OS_DISK, Disk
from krappy.store.format import CHECKPOINT, CHECKPOINT_COPY
from krappy.store.log import Log

FOLDER = Path("/data/topic-0")
SMALL = TopicConfig(segment_bytes=1000, index_interval_bytes=100)


class Row(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def made(
    *values: bytes | None,
    key: bytes | None = b"k",
    at: int = 1000,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    codec: int = 0,
) -> tuple[BatchHeader, bytes]:
    """One batch in the form that `Log.append` takes."""
    data = batch.encode(
        [key] * len(values),
        list(values),
        timestamps=at if at < 0 else [at + number for number in range(len(values))],
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence,
    )
    return batch.check(data), data


def opened(folder: Path, config: TopicConfig = SMALL, disk: Disk = OS_DISK) -> Log:
    return Log.open(folder, config, disk=disk)


def filled(folder: Path, batches: int, *, config: TopicConfig = SMALL, disk: Disk = OS_DISK, records: int = 3) -> Log:
    """A log with so many batches of `records` records each: offset 7 has the value b"0007" and the timestamp 1007."""
    log = opened(folder, config, disk)
    for number in range(log.end_offset, log.end_offset + batches * records, records):
        values = [b"%04d" % offset for offset in range(number, number + records)]
        log.append([made(*values, at=1000 + number)], 0, 10_000 + number)
    return log


def rows(log: Log, start: int | None = None, *, max_bytes: int = 700, limit: int | None = None) -> list[Row]:
    """Everything from `start` on, by reads of `max_bytes`."""
    position = log.start_offset if start is None else start
    first = position
    found: list[Row] = []
    while True:
        span = log.read_span(position, max_bytes, limit=limit)
        if not span.data:
            return found
        assert span.next_offset > position
        found += [row for row in unpacked(span.data) if row.offset >= first]
        position = span.next_offset


def unpacked(data: bytes | bytearray | memoryview) -> list[Row]:
    found: list[Row] = []
    for _, one in batch.split(data):
        columns = batch.decode(one)
        found += map(Row, columns.offsets, columns.timestamps, columns.keys, columns.values)
    return found


def offsets(found: Sequence[Row]) -> list[int]:
    return [row.offset for row in found]


def forget_checkpoint(folder: Path) -> None:
    """Deletes both files of the checkpoint."""
    for name in (CHECKPOINT, CHECKPOINT_COPY):
        (folder / name).unlink()


def log_files(folder: Path, suffix: str = ".log") -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
