"""Locks by name: one holder of a name at a time, first come, first served; and moments in which nobody holds any.

A lock is in the table from its first asker on until its last one has left, whoever waits, holds, is handed it or is
cancelled meanwhile: everybody who asks for a name asks for the same lock, and a name that nobody asks for takes no
memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class _Counted:
    __slots__ = ("askers", "lock")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.askers = 0  # who waits for it or holds it


class NameLocks:
    def __init__(self) -> None:
        self._locks: dict[str, _Counted] = {}
        self._alone = trio.Lock()  # held by who holds everything, or is about to
        self._opened: trio.Event | None = None  # set when newcomers may ask again
        self._empty = trio.Event()

    def __len__(self) -> int:
        """How many names are held or asked for."""
        return len(self._locks)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Held for the body. What has begun is brought to its end: the body can't be cancelled, waiting for it can."""
        while self._opened is not None:
            await self._opened.wait()
        counted = self._locks.get(name)
        if counted is None:
            counted = self._locks[name] = _Counted()
        counted.askers += 1
        try:
            async with counted.lock:
                with trio.CancelScope(shield=True):
                    yield
        finally:
            counted.askers -= 1
            if not counted.askers:
                del self._locks[name]
                if not self._locks:
                    self._empty.set()

    @asynccontextmanager
    async def everything(self) -> AsyncIterator[None]:
        """As `of` every name there is: waits for all who came before, and whoever comes later waits for this."""
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
    """Holds the lock for a body that can't be cancelled: whoever asked for it may leave, and it is done as a whole."""
    async with lock:
        with trio.CancelScope(shield=True):
            yield
