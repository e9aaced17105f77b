"""How far each log of a data folder has been on this disk: the file `DATA/reached`. A log's own folder can't tell that.

A log that ends before what its record says, or that has an event of an earlier leader epoch there, is not the one that
was here: an old copy of its folder was put back, or the disk has lost the end of it. Recovery takes that for a loss of
events (recovery.py).

A record never says more than its log has on disk. So whatever happens in between, a whole log never looks like an old
copy:

- After a sync of the log, before anybody counts on that, its record is written, without a sync. After a kill it says
  exactly how far the log was. After a loss of power it says that, or what it said some time before.
- Before a log is made shorter, or another one takes its place, its record is cleared, with a sync.

A record also says up to where the log is committed, for replicas in a cluster. That is written from time to time.

A record that can't be read counts as missing: then the log is taken as it is, like a log of an earlier version. A write
that the disk refuses is skipped. FORMAT.md has the bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from krappy.errors import StorageError
from krappy.store.disk import OS_DISK, Disk
from krappy.store.format import REACHED_BODY, REACHED_CRC, REACHED_SIZE
from krappy.store.local_replicas import ReplicaId
from krappy.store.refusals import refusals

NOTHING = bytes(REACHED_SIZE)


class Reached:
    """The record of one log. `offset`: everything before it has been on disk; 0: nothing is known. `epoch`: the leader
    epoch of the last event before it; -1: not known. `committed`: all before it is committed; never above `offset`."""

    __slots__ = ("_file", "committed", "epoch", "forgotten", "key", "offset", "position")

    def __init__(self, file: ReachedFile, key: ReplicaId) -> None:
        self._file, self.key = file, key
        self.offset, self.epoch, self.committed = 0, -1, 0
        self.position = -1  # in the file; -1: it was not written yet
        # How many calls of `forget` have it, or had it. Then nothing is written, although a sync of its log may be
        # under way.
        self.forgotten = 0

    def note(self, offset: int, epoch: int) -> None:
        """To be called after a sync of the log."""
        if offset and (offset, epoch) != (self.offset, self.epoch):
            self._file.write(self, offset, epoch)

    def commit(self, high_watermark: int) -> None:
        """To be called from time to time with the log's high watermark. What lies beyond `offset` is not noted."""
        if min(high_watermark, self.offset) > self.committed:
            self._file.write(self, committed=high_watermark)

    def clear(self) -> None:
        """To be called before the log is made shorter. On disk when it returns. Raises OSError."""
        self._file.clear([self])


class ReachedFile:
    """Safe for several threads."""

    def __init__(self, path: Path, disk: Disk = OS_DISK) -> None:
        """Makes the file if it is missing, or can't be read. Raises StorageError."""
        self._path = path
        self._lock = Lock()  # held while records are written
        self._known: dict[ReplicaId, Reached] = {}
        # A process that was killed may have cleared records without a sync, so that a loss of power brings them back.
        self._is_synced = False
        with refusals(path):
            self._file, data = disk.open_or_make(path, sync=False)
        self._free = []  # positions of records that can be overwritten
        self._end = -(-len(data) // REACHED_SIZE) * REACHED_SIZE
        for position in range(0, self._end, REACHED_SIZE):
            found = _unpacked(data[position : position + REACHED_SIZE])
            if found is None or found[0] in self._known:
                self._free.append(position)
            else:
                record = self.of(*found[0])
                record.position, (_, record.offset, record.epoch, record.committed) = position, found

    def of(self, topic_id: bytes, index: int) -> Reached:
        """The record of a log."""
        key = topic_id, index
        with self._lock:
            return self._known.setdefault(key, Reached(self, key))

    def forget(self, topic_id: bytes, indexes: Iterable[int]) -> None:
        """To be called before these logs are removed, or replaced by others. On disk when it returns. Raises
        StorageError; then it must be called again, and until then the logs that stay go on noting."""
        with self._lock:
            gone = [self._known[key] for index in indexes if (key := (topic_id, index)) in self._known]
            for each in gone:
                each.forgotten += 1
        try:
            with refusals(self._path):
                self.clear(gone)
        except StorageError:
            with self._lock:
                for each in gone:
                    each.forgotten -= 1
            raise
        with self._lock:
            for each in gone:
                if self._is_known(each):  # else somebody else has forgotten it meanwhile
                    del self._known[each.key]
                    if each.position >= 0:
                        self._free.append(each.position)

    # --- for its records

    def write(self, record: Reached, offset: int = 0, epoch: int = -1, committed: int = 0) -> None:
        """Without an `offset` it stays what it is, as `committed` does if it would be lower. If the disk refuses, the
        record stays what it is."""
        with self._lock, suppress(OSError):
            if record.forgotten:
                return
            if not offset:
                offset, epoch = record.offset, record.epoch
            committed = min(offset, max(record.committed, committed))
            body = REACHED_BODY.pack(*record.key, epoch, offset, committed)
            position = record.position
            if position < 0:
                position = self._free[-1] if self._free else self._end
            self._file.write([_packed(body)], position)
            if record.position < 0:
                record.position = self._free.pop() if self._free else self._end
                self._end = max(self._end, position + REACHED_SIZE)
            record.offset, record.epoch, record.committed = offset, epoch, committed

    def sync(self) -> None:
        """Puts what was written on disk. If the disk refuses, the next call tries again."""
        with suppress(OSError):
            self._file.fdatasync()

    def clear(self, records: Iterable[Reached]) -> None:
        """On disk when it returns. Raises OSError."""
        with self._lock:
            written = [each for each in records if each.position >= 0 and self._is_known(each)]
            for each in written:
                each.offset, each.epoch, each.committed = 0, -1, 0
                self._file.write([NOTHING], each.position)
            needed = written or not self._is_synced
        if needed:
            self._file.fdatasync()
            self._is_synced = True

    def _is_known(self, record: Reached) -> bool:
        return self._known.get(record.key) is record


def _packed(body: bytes) -> bytes:
    return (body + REACHED_CRC.pack(zlib.crc32(body))).ljust(REACHED_SIZE, b"\0")


def _unpacked(data: bytes) -> tuple[ReplicaId, int, int, int] | None:
    """((topic id, partition), offset, leader epoch, high watermark); None for what is no record."""
    body = data[: REACHED_BODY.size]
    if data != _packed(body):
        return None
    topic_id, index, epoch, offset, committed = REACHED_BODY.unpack(body)
    return ((topic_id, index), offset, epoch, committed) if offset > 0 else None
