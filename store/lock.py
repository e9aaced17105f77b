"""One broker per data folder: an advisory lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from krappy.errors import StorageError
from krappy.store.disk import OS_DISK


class FolderLock:
    """Holds `folder/lock` (flock), in a folder that is made if need be, durably. Raises StorageError when another
    process holds it."""

    def __init__(self, folder: Path) -> None:
        new = not folder.exists()
        OS_DISK.settle(folder)
        if new:
            folder.chmod(0o700)  # whatever the umask: it will hold all events
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            who = f" (process {owner})" if owner else ""
            raise StorageError(f"{folder} is in use by another broker{who}; stop that one first") from None
        with suppress(OSError):  # on a full disk it can't say whose it is, and is held all the same
            os.pwrite(self._fd, f"{os.getpid():<10}".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
