"""Locks by name: one holder of a name at a time, first come, first served; and one lock on all names at once.

A lock is in the table from when the first task asks for it until the last one has released it or was cancelled. So all
tasks that ask for a name share one lock, and an unused name takes no memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class _Counted:
    __slots__ = ("askers", "lock")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.askers = 0  # how many tasks wait for it or hold it


class NameLocks:
    def __init__(self) -> None:
        self._locks: dict[str, _Counted] = {}
        self._alone = trio.Lock()  # held by the task that holds all names, or waits for them
        self._opened: trio.Event | None = None  # while `_alone` is held: set when names may be asked for again
        self._empty = trio.Event()

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
        self._locks[name].lock.release()
        self._leave(name)

    def _leave(self, name: str) -> None:
        counted = self._locks[name]
        counted.askers -= 1
        if not counted.askers:
            del self._locks[name]
            if not self._locks:
                self._empty.set()

    @asynccontextmanager
    async def everything(self) -> AsyncIterator[None]:
        """Holds all names for the body: waits for all earlier holders, and later ones wait for this."""
        async with self._alone:
            self._opened = trio.Event()
            try:
                while self._locks:
                    self._empty = trio.Event()
                    await self._empty.wait()
                with trio.CancelScope(shield=True):
                    yield
            finally:
                self._opened.set()
                self._opened = None


@asynccontextmanager
async def whole(lock: trio.Lock) -> AsyncIterator[None]:
    """Holds the lock for a body that can't be cancelled: it runs to its end even if its caller is gone."""
    async with lock:
        with trio.CancelScope(shield=True):
            yield
