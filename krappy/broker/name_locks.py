"""Locks by name: one holder of a name at a time, first come, first served; and one lock on all names at once.

A lock is in the table from when the first task asks for it until the last one has released it or was cancelled. So all
tasks that ask for a name share one lock, and an unused name takes no memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import trio

from krappy.waiting import HANGS_S, Signal, wait_any


class _Counted:
    __slots__ = ("askers", "lock", "turn")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.askers = 0  # how many tasks wait for it or hold it
        self.turn = 0  # how many have held it before


class NameLocks:
    def __init__(self) -> None:
        self._locks: dict[str, _Counted] = {}
        self._alone = trio.Lock()  # held by the task that holds all names, or waits for them
        self._opened: trio.Event | None = None  # while `_alone` is held: set when names may be asked for again
        self._released = Signal()

    def __len__(self) -> int:
        """How many names are held or waited for."""
        return len(self._locks)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Holds the name for the body; at once, without giving others a turn, if nobody has it. The wait for it can be
        cancelled; the body can't, and always runs to its end."""
        await self.acquire(name)
        try:
            with trio.CancelScope(shield=True):
                yield
        finally:
            self.release(name)

    async def acquire(self, name: str) -> None:
        """As `of`. The same task must call `release` later."""
        while self._opened is not None:
            await self._opened.wait()
        counted = self._locks.get(name)
        if counted is None:
            counted = self._locks[name] = _Counted()
        counted.askers += 1
        try:
            try:
                counted.lock.acquire_nowait()
            except trio.WouldBlock:
                await counted.lock.acquire()
        except BaseException:
            self._leave(name)
            raise

    def release(self, name: str) -> None:
        counted = self._locks[name]
        counted.turn += 1
        counted.lock.release()
        self._leave(name)

    def _leave(self, name: str) -> None:
        counted = self._locks[name]
        counted.askers -= 1
        if not counted.askers:
            del self._locks[name]
        self._released.fire()

    def everything(self) -> AbstractAsyncContextManager[None]:
        """Holds all names, as the function `everything`."""
        return everything(self)

    async def _close(self, patience_s: float) -> bool:
        """Lets nobody ask for a name any more, until `_open`. Whether nobody holds one within that time."""
        self._opened = trio.Event()
        return await wait_any([self._released], lambda: not self._locks, patience_s)

    def _open(self) -> None:
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def _until_left(self) -> None:
        """Waits for those who hold a name now; for none that comes later."""
        held = [(each, each.turn) for each in self._locks.values()]
        await wait_any([self._released], lambda: all(not each.askers or each.turn != turn for each, turn in held))


@asynccontextmanager
async def everything(*locks: NameLocks) -> AsyncIterator[None]:
    """Holds all names of these locks for the body: waits for all earlier holders, and later ones wait for this. The
    wait can be cancelled; the body can't, and always runs to its end.

    A holder may hang with its disk. So later ones wait for `HANGS_S` at first, and go on until those who held a name
    then have left. After that they wait again, twice as long: so this has its turn although many are slow."""
    patience_s = HANGS_S
    async with AsyncExitStack() as stack:
        for each in locks:
            await stack.enter_async_context(each._alone)
        while True:
            try:
                for each in locks:
                    if not await each._close(patience_s):
                        late = each
                        break
                else:
                    with trio.CancelScope(shield=True):
                        yield
                    return
            finally:
                for each in locks:
                    each._open()
            await late._until_left()
            patience_s *= 2


@asynccontextmanager
async def whole(lock: trio.Lock) -> AsyncIterator[None]:
    """Holds the lock for a body that can't be cancelled: it runs to its end even if its caller is gone."""
    async with lock:
        with trio.CancelScope(shield=True):
            yield
