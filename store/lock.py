"""One broker per data folder: an advisory lock that dies with its process.

Nobody gets it for a backup. To open what is in there changes it, and other backups that share its files: then they
can't be restored any more. And nobody would have fenced the producers whose transactions were open, as a restore does.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from krappy.errors import StorageError
from krappy.store.disk import OS_DISK, PRIVATE
from krappy.store.refusals import refusals

LISTING = "backup.json"  # the last file of a backup


class FolderLock:
    """Holds `folder/lock` (flock). The folder is created, durably, if it is missing. Raises StorageError when another
    process holds the lock, the folder is a backup, or the disk refuses."""

    def __init__(self, folder: Path) -> None:
        if (folder / LISTING).exists():
            does = "`krappy restore` makes a data folder of it, and `krappy doctor --backup` checks it"
            raise StorageError(f"{folder} is a backup: {does}")
        with refusals(folder / "lock"):
            OS_DISK.settle(folder, PRIVATE)  # whatever the umask is: a new folder will hold all events
            self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            who = f" (process {owner})" if owner else ""
            raise StorageError(f"{folder} is in use by another broker{who}; stop that one first") from None
        with suppress(OSError):  # on a full disk the lock is held, but names no process
            os.pwrite(self._fd, f"{os.getpid():<10}".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
