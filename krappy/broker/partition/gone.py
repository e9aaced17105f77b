"""Work at the files of a partition that may be deleted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from krappy.errors import KrappyError, StorageError


class Closable(Protocol):
    """`gone`: what calls raise since it was closed."""

    gone: KrappyError | None


@contextmanager
def unless_gone(partition: Closable) -> Iterator[None]:
    """`with` while a thread works at the partition's log. If the thread fails because the log was deleted meanwhile, it
    raises `gone`: that is no fault of the disk."""
    try:
        yield
    except StorageError:
        if partition.gone is not None:
            raise partition.gone from None
        raise
