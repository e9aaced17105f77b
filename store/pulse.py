"""How long a broker of a cluster has used this data folder: a count in the file `DATA/pulse`. And which version of its
lease (`paths.lease`) it has written last.

Every few seconds the registered broker raises the count, and tells ZooKeeper once it is on disk. So a folder whose
count is below ZooKeeper's is an old copy. The other way round, ZooKeeper was given older data if its version of the
lease is below the one that is noted here, for only this broker writes its lease. FORMAT.md has the bytes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from krappy.store.disk import OS_DISK, Disk
from krappy.store.format import PULSE_COUNT
from krappy.store.refusals import refusals


def read(data: bytes) -> tuple[int, int]:
    """(the count, the lease's version) that the file's content stands for; (0, -1) for what is none."""
    if len(data) == PULSE_COUNT.size:  # of an earlier version
        return int(PULSE_COUNT.unpack(data)[0]), -1
    if len(data) != 2 * PULSE_COUNT.size:
        return 0, -1
    count, lease = (int(each[0]) for each in PULSE_COUNT.iter_unpack(data))
    return count, lease - 1


class Pulse:
    """`count`: as it is on disk; 0 if the file can't be read. `lease`: the version that is noted; -1: none is known."""

    def __init__(self, path: Path, disk: Disk = OS_DISK) -> None:
        """Makes the file if it is missing or can't be read. Raises StorageError."""
        with refusals(path):
            self._file, data = disk.open_or_make(path)
        self.count, self.lease = read(data)

    def beat(self) -> None:
        """Raises the count. If the disk refuses, the count stays as it is."""
        count = self.count + 1
        with suppress(OSError):
            self._file.write([PULSE_COUNT.pack(count), PULSE_COUNT.pack(self.lease + 1)], 0)
            self._file.truncate(2 * PULSE_COUNT.size)  # what is longer is no count
            self._file.fdatasync()
            self.count = count

    def note(self, lease: int) -> None:
        """Notes this version of the lease, without a sync: the next beat syncs it. If the disk refuses, what was noted
        stays."""
        with suppress(OSError):
            self._file.write([PULSE_COUNT.pack(lease + 1)], PULSE_COUNT.size)
            self.lease = lease
