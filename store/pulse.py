"""How long a broker of a cluster has used this data folder: a count in the file `DATA/pulse`.

Every few seconds the registered broker raises the count, and tells ZooKeeper once it is on disk. So a folder whose
count is below ZooKeeper's is an old copy. FORMAT.md has the bytes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from krappy.store.disk import OS_DISK, Disk
from krappy.store.format import PULSE_COUNT
from krappy.store.refusals import refusals


def read(data: bytes) -> int:
    """The count that the file's content stands for; 0 for what is none."""
    return int(PULSE_COUNT.unpack(data)[0]) if len(data) == PULSE_COUNT.size else 0


class Pulse:
    """`count`: as it is on disk; 0 if the file can't be read."""

    def __init__(self, path: Path, disk: Disk = OS_DISK) -> None:
        """Makes the file if it is missing or can't be read. Raises StorageError."""
        with refusals(path):
            self._file, data = disk.open_or_make(path)
        self.count = read(data)

    def beat(self) -> None:
        """Raises the count. If the disk refuses, the count stays as it is."""
        count = self.count + 1
        with suppress(OSError):
            self._file.write([PULSE_COUNT.pack(count)], 0)
            self._file.truncate(PULSE_COUNT.size)  # what is longer is no count
            self._file.fdatasync()
            self.count = count
