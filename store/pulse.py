"""How long a broker of a cluster has used this data folder: a count in the file `DATA/pulse`.

Every few seconds the registered broker raises the count, and tells ZooKeeper once it is on disk. So a folder whose
count is below ZooKeeper's is an old copy. FORMAT.md has the bytes.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from krappy.store.disk import OS_DISK, UNREADABLE, Disk
from krappy.store.format import PULSE_COUNT
from krappy.store.refusals import refusals


class Pulse:
    """`count`: as it is on disk; 0 if the file can't be read."""

    def __init__(self, path: Path, disk: Disk = OS_DISK) -> None:
        """Makes the file if it is missing. Raises StorageError."""
        self.count = 0
        with refusals(path):
            try:
                data = disk.read_file(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, *UNREADABLE):
                    raise
                disk.write_file(path, b"")
                disk.fsync_dir(path.parent)
                data = b""
            self._file = disk.open(path, write=True)
        if len(data) == PULSE_COUNT.size:
            [self.count] = PULSE_COUNT.unpack(data)

    def beat(self) -> None:
        """Raises the count. If the disk refuses, the count stays as it is."""
        count = self.count + 1
        with suppress(OSError):
            self._file.write([PULSE_COUNT.pack(count)], 0)
            self._file.fdatasync()
            self.count = count
