"""A file that holds room on the disk, for what makes room: a start, a deletion, the catalog's few bytes.

    DATA/ballast    as large as it is to be; empty once it was given up, until it is made again

It is allocated, not written. Where the file system compresses or shares blocks, it may hold less than it says.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from krappy.errors import StorageError

NAME = "ballast"
SHARE = 8  # of a small disk it is at most this part
BLOCK = 4096


class Space(NamedTuple):
    """Of a file system, in bytes."""

    total: int
    free: int  # for whom the broker runs as

    def __str__(self) -> str:
        return f"{self.free:,} of {self.total:,} bytes are free"


def space(folder: Path) -> Space:
    """Raises StorageError."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
    return Space(usage.total, usage.free)


class Ballast:
    """Of a data folder. Everything blocks."""

    def __init__(self, data: Path, size: int) -> None:
        """`size`: bytes that it is to have; 0: there is none."""
        self.path = data / NAME
        self._size = size

    def wanted(self, total: int) -> int:
        """Bytes that it is to have on a disk of `total` bytes."""
        return min(self._size, total // SHARE) // BLOCK * BLOCK

    def held(self) -> int:
        """Bytes that it has; 0: it was given up, or was never there."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def given_up(self) -> bool:
        """Whether it was, and is not back yet."""
        return self.path.exists() and not self.held()

    def give_up(self) -> None:
        """Raises StorageError."""
        try:
            os.truncate(self.path, 0)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self.path} can't be given up: {error.strerror or error}") from error

    def make(self, size: int) -> bool:
        """Whether it has `size` bytes now: all of them or none."""
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
