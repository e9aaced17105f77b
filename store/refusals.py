"""Turns the disk's errors into those that the store raises."""

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
