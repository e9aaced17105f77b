"""Record batches that take long to open: in a thread, and few at a time.

A batch of one megabyte may open to 32, or have half a million records. What is opened on the event loop is bounded
(`admission.INLINE`): what is beyond that is opened here, and `OPENERS` at a time: that bounds the memory they take, and
leaves the other threads, and most of the interpreter's lock, to others.
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
    """Of all brokers of this event loop."""
    try:
        return of.get()
    except LookupError:
        made = trio.CapacityLimiter(OPENERS)
        of.set(made)
        return made


async def opened(work: Callable[[], T]) -> T:
    """What `work` makes of a large batch.

    Its error comes without the frames it was raised in, which hold what was opened: trio keeps an error out of a thread
    in a frame which that error holds, so that both would stay until the next full garbage collection.
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
    """Its records, when they are few enough to be read at once: within `room` bytes."""
    try:
        return batches.decode(batch, limit=room, parts=INLINE_PARTS)
    except CorruptBatch:
        return None


async def decode(batch: memoryview) -> Columns:
    """The records of a batch out of the log. Raises CorruptBatch."""
    found = small(batch)
    return await opened(lambda: batches.decode(batch)) if found is None else found


async def looked_at(batch: memoryview, work: Callable[[Columns], T]) -> T:
    """What `work` makes of its records: in a thread where they are many, and nothing else of them is kept."""
    found = small(batch)
    if found is not None:
        return work(found)
    return await opened(lambda: work(batches.decode(batch)))


@asynccontextmanager
async def decoded(batch: memoryview) -> AsyncIterator[Columns]:
    """The same for who works on them for long: so many at a time as are opened."""
    found = small(batch)
    if found is not None:
        yield found
        return
    async with _limiter(_holders):
        yield await opened(lambda: batches.decode(batch))
