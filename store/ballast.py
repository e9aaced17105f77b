"""A file that reserves disk space. On a full disk it is given up for a start, a deletion, or the catalog's few bytes.

    DATA/ballast    of its full size; empty from when it was given up until it is made again

It is allocated, not written. Where the file system compresses or shares blocks, it may reserve less than its size.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from krappy.errors import StorageError

NAME = "ballast"
SHARE = 8  # it is at most 1/SHARE of the disk
BLOCK = 4096


class Space(NamedTuple):
    """The space of a file system, in bytes."""

    total: int
    free: int  # for the user that the broker runs as

    def __str__(self) -> str:
        return f"{self.free:,} of {self.total:,} bytes are free"


def space(folder: Path) -> Space:
    """The space of the folder's file system. Raises StorageError."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
    return Space(usage.total, usage.free)


class Ballast:
    """The ballast of a data folder. Everything blocks."""

    def __init__(self, data: Path, size: int) -> None:
        """`size`: bytes to reserve; 0: no ballast."""
        self.path = data / NAME
        self._size = size

    def wanted(self, total: int) -> int:
        """Bytes to reserve on a disk of `total` bytes."""
        return min(self._size, total // SHARE) // BLOCK * BLOCK

    def held(self) -> int:
        """Bytes that are reserved now; 0: it was given up, or was never made."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def given_up(self) -> bool:
        """Whether it was given up, and is not made again yet."""
        return self.path.exists() and not self.held()

    def give_up(self) -> None:
        """Empties the file. Raises StorageError."""
        try:
            os.truncate(self.path, 0)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self.path} can't be given up: {error.strerror or error}") from error

    def make(self, size: int) -> bool:
        """Reserves `size` bytes, all of them or none. Returns whether it could."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.ftruncate(fd, 0)
            if size:
                os.posix_fallocate(fd, 0, size)
            return True
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, 0)
            return False
        finally:
            os.close(fd)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()
