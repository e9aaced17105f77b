"""Shared by the coordinators of transactions and of staged jobs: locks by name, and waiting for markers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from krappy.broker.name_locks import NameLocks
from krappy.errors import KrappyError, ShuttingDown, UnknownTopic
from krappy.waiting import Later


class IdTurns:
    """One change at a time of each transactional id, or job."""

    def __init__(self) -> None:
        self._locks = NameLocks()
        self.closed = False  # `of` raises ShuttingDown

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Holds the name for the body, which can't be cancelled. Raises ShuttingDown once this is closed."""
        async with self._locks.of(name):
            if self.closed:
                raise ShuttingDown("the broker is shutting down")
            yield

    def although_closed(self, name: str) -> AbstractAsyncContextManager[None]:
        """As `of`, for work that goes on while the broker closes."""
        return self._locks.of(name)


async def written(markers: Iterable[Later[Any]]) -> None:
    """Waits for all markers. Raises the last error, but ignores topics that were deleted meanwhile."""
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
