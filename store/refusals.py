"""Turns errors of the disk, and of records that can't be read, into the errors that the store raises."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from krappy.errors import StorageError

OWNER = "all of the data folder must belong to the user that the broker runs as"
ADVICE = {
    errno.EISDIR: "the broker keeps a file there: stop it, and move the folder of that name away",
    errno.ESPIPE: "the broker keeps a file there: stop it, and move the pipe of that name away",
    errno.EACCES: OWNER,
    errno.EPERM: OWNER,
    errno.EROFS: "mount the disk so that the broker can write to it",
}  # by the number of the error


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Turns an OSError into a StorageError that names the folder, and says what to do where that is known."""
    try:
        yield
    except OSError as error:
        advice = ADVICE.get(error.errno or 0)
        raise StorageError(f"{folder}: {error}{f'; {advice}' if advice else ''}") from error


@contextmanager
def reading(record: bytes | str) -> Iterator[None]:
    """Turns any error of the body into a StorageError: the catalog's record of this key or path can't be read."""
    try:
        yield
    except Exception as error:
        raise StorageError(f"the catalog's record {record!r} can't be read: {error or type(error).__name__}") from error
