"""Turns errors of the disk, and of records that can't be read, into the errors that the store raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from krappy.errors import StorageError


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Turns an OSError into a StorageError that names the folder."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{folder}: {error}") from error


@contextmanager
def reading(record: bytes | str) -> Iterator[None]:
    """Turns any error of the body into a StorageError: the catalog's record of this key or path can't be read."""
    try:
        yield
    except Exception as error:
        raise StorageError(f"the catalog's record {record!r} can't be read: {error or type(error).__name__}") from error
