"""Decodes large record batches in a thread, few at a time.

A batch of one megabyte may unpack to 32, or have half a million records. Batches up to `admission.INLINE` are decoded
on the event loop. Larger ones are decoded here, one at a time: that bounds their memory, and leaves the other threads,
and most of the interpreter's lock, to others. It takes up to some hundred ms, and a client may send hundreds of them at
the same moment. So users take turns, and so do topics with what is decoded for their views.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import trio

from krappy.broker.partition.gone import Closable, unless_gone
from krappy.core.admission import INLINE, INLINE_PARTS
from krappy.errors import CorruptBatch, KrappyError
from krappy.ports.audit import whose
from krappy.records import batch as batches
from krappy.records.batch import Columns
from krappy.turns import UserTurns

FINDERS = 16  # threads
T = TypeVar("T")
V = TypeVar("V")
_opening: trio.lowlevel.RunVar[UserTurns] = trio.lowlevel.RunVar("krappy-opening")
_holding: trio.lowlevel.RunVar[UserTurns] = trio.lowlevel.RunVar("krappy-holding")
_finding: trio.lowlevel.RunVar[UserTurns] = trio.lowlevel.RunVar("krappy-finding")
_finders: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("krappy-finders")
_thread: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("krappy-opener")


def _shared(variable: trio.lowlevel.RunVar[V], make: Callable[[], V]) -> V:
    """What all brokers of this event loop share."""
    try:
        return variable.get()
    except LookupError:
        made = make()
        variable.set(made)
        return made


def _turns(variable: trio.lowlevel.RunVar[UserTurns]) -> UserTurns:
    return _shared(variable, UserTurns)


class Searchable(Closable, Protocol):
    """`searching`: the turns of those who search its log by time; None: nobody did yet."""

    searching: UserTurns | None


async def found(partition: Searchable, search: Callable[[], T]) -> T:
    """Runs `search`, which looks for an event of the partition by its time, in a thread. It may wait for the disk. So
    there is one search of a log at a time: one that hangs keeps no other thread. Only one of all searches opens a batch
    at a time (store/opening.py). Users take turns. Raises `gone` if the log was deleted meanwhile."""
    if partition.searching is None:
        partition.searching = UserTurns()
    who = whose()
    async with partition.searching.one(who), _shared(_finding, lambda: UserTurns(FINDERS)).one(who):
        limiter = _shared(_finders, lambda: trio.CapacityLimiter(FINDERS))
        with unless_gone(partition):
            return await trio.to_thread.run_sync(search, limiter=limiter)


async def opened(work: Callable[[], T], owner: str | None = None) -> T:
    """Runs `work`, which decodes a large batch, in a thread, and gives its result. `owner`: whose turns it takes; None:
    see `whose`.

    Its KrappyError is raised without its traceback, whose frames hold the decoded batch. With it, the error and a frame
    of trio's would refer to each other, and both would stay until the next full garbage collection.
    """
    async with _turns(_opening).one(whose() if owner is None else owner):
        limiter = _shared(_thread, lambda: trio.CapacityLimiter(1))
        found = await trio.to_thread.run_sync(_tried, work, limiter=limiter)
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
async def decoded(batch: memoryview, owner: str) -> AsyncIterator[Columns]:
    """As `decode`, for work that takes long: one large batch is held at a time. `owner`: as of `opened`."""
    found = small(batch)
    if found is not None:
        yield found
        return
    async with _turns(_holding).one(owner):
        yield await opened(lambda: batches.decode(batch), owner)
