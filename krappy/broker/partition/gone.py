"""Work at the files of a partition that may be deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import trio

from krappy.errors import KrappyError, StorageError

T = TypeVar("T")
READS = 4  # threads that read one log at a time: if the disk hangs there, any number of readers may come


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


class Readable(Closable, Protocol):
    """`reading`: how many threads may read its log; None: it was never read in one."""

    reading: trio.CapacityLimiter | None
    disk_limiter: trio.CapacityLimiter


async def read_in_thread(partition: Readable, read: Callable[[], T]) -> T:
    """Runs `read`, which reads the partition's log, in one of the threads that wait for the disk. Raises `gone` if the
    log was deleted meanwhile."""
    if partition.reading is None:
        partition.reading = trio.CapacityLimiter(READS)
    async with partition.reading:
        with unless_gone(partition):
            return await trio.to_thread.run_sync(read, limiter=partition.disk_limiter)
