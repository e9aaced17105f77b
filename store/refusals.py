"""What the disk refuses, as the store's callers are to meet it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from krappy.errors import StorageError


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Makes StorageError of what the disk refuses to the log in this folder."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{folder}: {error}") from error
