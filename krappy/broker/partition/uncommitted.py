"""Reads up to the high watermark, with the events of open and of aborted transactions, for those who want them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.broker.partition.gone import read_in_thread
from krappy.types import Span

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition


def read_uncommitted_now(partition: Partition, offset: int, max_bytes: int, max_records: int) -> Span:
    """Whole batches from `offset` on, from the page cache alone. Raises BlockingIOError when the disk would have to be
    waited for, OffsetOutOfRange."""
    partition.check_readable(offset)
    end = partition.high_watermark
    if offset >= end:
        return Span(b"", offset, 0)
    return partition.log.read_span(offset, max_bytes, limit=end, max_records=max_records, nowait=True)


async def read_uncommitted(partition: Partition, offset: int, max_bytes: int, max_records: int) -> Span:
    """As `read_uncommitted_now`, but waits for the disk in a thread where it must."""
    try:
        return read_uncommitted_now(partition, offset, max_bytes, max_records)
    except BlockingIOError:
        end = partition.high_watermark
        found = await read_in_thread(
            partition, lambda: partition.log.read_span(offset, max_bytes, limit=end, max_records=max_records)
        )
        partition.check_readable(offset)
        return found
