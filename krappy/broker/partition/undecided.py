"""Which keys have been written at or after a partition's last stable offset, which the view does not have yet.

A conditional write is decided by the view. For such a key the view is stale, so the write is refused until the
transactions that hold the last stable offset back have ended. The log is read for this only when a condition comes
while a transaction is open.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition import large
from krappy.errors import OffsetOutOfRange
from krappy.records import batch as batches

if TYPE_CHECKING:
    from krappy.broker.partition.replica import Replica

UNDECIDED = -2  # instead of a key's offset: it depends on how a transaction ends
READ = 256 << 10
MAX_BYTES = 16 << 20  # of keys; with more, every key counts as undecided
KEY_COST = 120  # bytes that a key takes beside its own


class Undecided:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._keys: dict[bytes, int] = {}  # key -> the last offset that it was seen at
        self._size = 0
        self._next = 0  # the first offset that was not read
        self._too_many_below = 0  # before this offset there were too many keys to remember

    def holds(self, key: bytes) -> bool:
        """Whether the key was, or may have been, written at or after the last stable offset. Call `refresh` first."""
        stable = self._replica.last_stable_offset
        return self._too_many_below > stable or self._keys.get(key, -1) >= stable

    async def refresh(self) -> None:
        """Reads the events that are new since the last call. Raises CorruptBatch, StorageError."""
        replica = self._replica
        stable, end = replica.last_stable_offset, replica.high_watermark
        if stable >= end:
            self._keys.clear()
            self._size = 0
            self._next = end
            return
        offset = max(self._next, stable)
        while (offset := max(offset, replica.start_offset)) < end:
            if self._too_many_below > stable:
                self._too_many_below = offset = end
                break
            # Only committed events are read: others may be cut off, and the next leader's log may have other events
            # there.
            read = partial(replica.log.read_span, offset, READ, limit=end)
            try:
                span = await trio.to_thread.run_sync(read, limiter=replica.disk_limiter)
            except OffsetOutOfRange:
                continue  # records were deleted meanwhile
            if not span.data:
                break
            for header, view in batches.split(span.data):
                if not header.is_control and header.next_offset > offset:
                    self._note(await large.decode(view), stable)
            offset = span.next_offset
        self._next = offset

    def _note(self, columns: batches.Columns, stable: int) -> None:
        for key, at in zip(columns.keys, columns.offsets, strict=True):
            if key is not None:
                if key not in self._keys:
                    self._size += len(key) + KEY_COST
                self._keys[key] = at
        if self._size > MAX_BYTES:
            self._keys = {key: at for key, at in self._keys.items() if at >= stable}
            self._size = sum(len(key) + KEY_COST for key in self._keys)
            if self._size > MAX_BYTES:
                self._too_many_below = columns.offsets[-1] + 1
                self._keys.clear()
                self._size = 0
