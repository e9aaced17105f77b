"""Reads batches of a partition as they stand in the log: for Kafka's consumers, which leave out aborted events
themselves.

A small read is copied into memory, and its CRCs are checked. A large one is sent from the file (sendfile(2)), without
reading or checking it here; consumers check it. See `SENDFILE` for the size from which that is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.errors import OffsetOutOfRange
from krappy.ports import Raw
from krappy.types import FilePart

if TYPE_CHECKING:
    from krappy.broker.partition.replica import Replica

# Bytes from which a read is sent from its file. Measured, the broker's CPU for one fetch: with batches of 170 bytes
# 73 us instead of 133 us at 16 KiB, 113 instead of 640 at 128 KiB; with batches of 1 to 110 kB no difference up to
# 64 KiB; 107 instead of 153 at 128 KiB (1 kB), 220 instead of 593 at 512 KiB (1 kB), 187 instead of 293 (110 kB).
SENDFILE = 16 << 10
STRIDE = 128 << 10  # distance of the probes for the page cache: the kernel reads ahead that much
PORTION = 1 << 20  # bytes of one read that fills the page cache


NOTHING = Raw(b"", 0)


def read_now(replica: Replica, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
    """Reads about `max_bytes` from the batch that contains `offset` on, of batches that begin before `limit`.

    With `min_one`: at least one whole batch. Raises BlockingIOError when it would have to wait for the disk,
    OffsetOutOfRange, and the partition's `gone` if it is closed.
    """
    check_readable(replica, offset)
    if offset >= limit:
        return NOTHING
    if max_bytes >= SENDFILE:
        places = replica.log.locate(offset, max_bytes, limit, nowait=True)
        if places and places[0][2] >= SENDFILE:
            file, position, size = places[0]
            if size > max_bytes and not min_one:
                return NOTHING
            part = FilePart(file, position, size)
            check_cached(part)
            return Raw(part, limit)
    return _read_on(replica, offset, max_bytes, limit, nowait=True, min_one=min_one)


async def read(replica: Replica, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
    """As `read_now`, but waits for the disk in a thread where it must."""
    try:
        return read_now(replica, offset, max_bytes, limit, min_one=min_one)
    except BlockingIOError:
        pass

    def work() -> Raw:
        places = replica.log.locate(offset, max_bytes, limit)
        if places and places[0][2] >= SENDFILE:
            file, position, size = places[0]
            if size > max_bytes and not min_one:
                return NOTHING
            part = FilePart(file, position, size)
            warm(part)
            return Raw(part, limit)
        return _read_on(replica, offset, max_bytes, limit, nowait=False, min_one=min_one)

    return await replica.in_thread(offset, work)


def _read_on(replica: Replica, offset: int, max_bytes: int, limit: int, *, nowait: bool, min_one: bool) -> Raw:
    """Reads, and skips batches that compaction has emptied if others follow: kafkajs does not move on from an answer
    without a record, and a whole segment may be like that."""
    while True:
        span = replica.log.read_span(offset, max_bytes, limit=limit, nowait=nowait, min_one=min_one)
        if not span.data or span.records or span.next_offset >= limit:
            return Raw(span.data, span.next_offset)
        offset = span.next_offset


def available(replica: Replica, offset: int, max_bytes: int, limit: int) -> int:
    """About how many bytes `read_now` would give, without reading them. Raises what `read_now` does."""
    check_readable(replica, offset)
    if offset >= limit:
        return 0
    return sum(size for _, _, size in replica.log.locate(offset, max_bytes, limit, nowait=True))


def check_readable(replica: Replica, offset: int) -> None:
    """Raises OffsetOutOfRange, and the partition's `gone` if it is closed."""
    if replica.gone is not None:
        raise replica.gone
    start, end = replica.start_offset, replica.high_watermark
    if not start <= offset <= end:
        raise OffsetOutOfRange(f"{replica}: offset {offset} is outside {start} to {end}", start=start, end=end)


def check_cached(part: FilePart) -> None:
    """Raises BlockingIOError when a probe finds that the part is not in the page cache."""
    for at in range(part.position, part.position + part.size, STRIDE):
        part.file.pread_nowait(1, at)


def warm(part: FilePart) -> None:
    """Reads the part into the page cache, so that sending it does not block the event loop."""
    position, end = part.position, part.position + part.size
    while position < end:
        got = len(part.file.pread(min(PORTION, end - position), position))
        if not got:
            return
        position += got
