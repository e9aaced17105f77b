"""What the coordinators of transactions and of staged writes have in common: turns by name, and markers awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from krappy.broker.name_locks import NameLocks
from krappy.errors import KrappyError, ShuttingDown, UnknownTopic
from krappy.waiting import Later


class IdTurns:
    """One change at a time of what a name stands for."""

    def __init__(self) -> None:
        self._locks = NameLocks()
        self.closed = False  # no turn is given any more

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """What was begun is brought to its end, whoever leaves meanwhile. Raises ShuttingDown once it is closed."""
        async with self._locks.of(name):
            if self.closed:
                raise ShuttingDown("the broker is shutting down")
            yield

    def although_closed(self, name: str) -> AbstractAsyncContextManager[None]:
        """For what goes on while everything closes."""
        return self._locks.of(name)


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
