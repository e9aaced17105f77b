"""What the coordinators of transactions and of staged writes have in common: turns by name, and markers awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from krappy.errors import KrappyError, ShuttingDown, UnknownTopic
from krappy.waiting import Later


class Turns:
    """One change at a time of what a name stands for."""

    def __init__(self, known: Callable[[str], bool]) -> None:
        """`known`: whether a name stands for something still; the lock of one that does not is given up."""
        self._known = known
        self._locks: dict[str, trio.Lock] = {}
        self.closed = False  # no turn is given any more

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Raises ShuttingDown once it is closed."""
        lock = self.lock(name)
        await lock.acquire()
        try:
            if self.closed:
                raise ShuttingDown("the broker is shutting down")
            with trio.CancelScope(shield=True):  # who asked may leave; what was begun is brought to its end
                yield
        finally:
            lock.release()
            if not self._known(name) and not lock.statistics().tasks_waiting:
                self._locks.pop(name, None)

    def lock(self, name: str) -> trio.Lock:
        """For what goes on while everything closes."""
        return self._locks.setdefault(name, trio.Lock())


async def written(markers: Iterable[Later[Any]]) -> None:
    """Waits for every marker. Raises the last trouble there was; a topic that was deleted meanwhile is none."""
    trouble: KrappyError | None = None
    for marker in markers:
        try:
            await marker.wait()
        except UnknownTopic:
            continue
        except KrappyError as error:
            trouble = error
    if trouble is not None:
        raise trouble
