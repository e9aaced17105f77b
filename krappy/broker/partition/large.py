"""Decodes large record batches in a thread, few at a time.

A batch of one megabyte may unpack to 32, or have half a million records. Batches up to `admission.INLINE` are decoded
on the event loop. Larger ones are decoded here, `OPENERS` at a time: that bounds their memory, and leaves the other
threads, and most of the interpreter's lock, to others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from krappy.core.admission import INLINE, INLINE_PARTS
from krappy.errors import CorruptBatch, KrappyError
from krappy.records import batch as batches
from krappy.records.batch import Columns

T = TypeVar("T")
OPENERS = 1
_openers: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("krappy-openers")
_holders: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("krappy-holders")


def _limiter(of: trio.lowlevel.RunVar[trio.CapacityLimiter]) -> trio.CapacityLimiter:
    """The limiter that all brokers of this event loop share."""
    try:
        return of.get()
    except LookupError:
        made = trio.CapacityLimiter(OPENERS)
        of.set(made)
        return made


async def opened(work: Callable[[], T]) -> T:
    """Runs `work`, which decodes a large batch, in a thread, and gives its result.

    Its KrappyError is raised without its traceback, whose frames hold the decoded batch. With it, the error and a frame
    of trio's would refer to each other, and both would stay until the next full garbage collection.
    """
    found = await trio.to_thread.run_sync(_tried, work, limiter=_limiter(_openers))
    if not isinstance(found, KrappyError):
        return found
    try:
        raise found
    finally:
        del found, work


def _tried(work: Callable[[], T]) -> T | KrappyError:
    try:
        return work()
    except KrappyError as error:
        error.__context__ = None
        return error.with_traceback(None)


def small(batch: memoryview, room: int = INLINE) -> Columns | None:
    """The batch's records, if they take at most `room` bytes and are few. None if not, and for a corrupt batch."""
    try:
        return batches.decode(batch, limit=room, parts=INLINE_PARTS)
    except CorruptBatch:
        return None


async def decode(batch: memoryview) -> Columns:
    """The records of a batch from the log; a large one is decoded in a thread. Raises CorruptBatch."""
    found = small(batch)
    return await opened(lambda: batches.decode(batch)) if found is None else found


async def looked_at(batch: memoryview, work: Callable[[Columns], T]) -> T:
    """Gives what `work` returns for the batch's records. A large batch is decoded and worked on in a thread, and its
    records are freed at once. Raises CorruptBatch."""
    found = small(batch)
    if found is not None:
        return work(found)
    return await opened(lambda: work(batches.decode(batch)))


@asynccontextmanager
async def decoded(batch: memoryview) -> AsyncIterator[Columns]:
    """As `decode`, for work that takes long: at most `OPENERS` large batches are held at a time."""
    found = small(batch)
    if found is not None:
        yield found
        return
    async with _limiter(_holders):
        yield await opened(lambda: batches.decode(batch))
