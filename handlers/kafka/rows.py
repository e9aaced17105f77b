"""Long answers: others have their turn while one is made, and memory bounds how long it may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from krappy.errors import InvalidRequest
from krappy.ports import KafkaSessionPort

ROW = 512  # bytes that a row of an answer takes while it is made, at the most, beside the names in it
FEW = 250  # rows that are made in one go
LEAST = 20_000  # rows that are always possible: one for each thing that a request may name
MOST = 50_000 * ROW


class BatchedRows:
    """Counts what is put into one answer."""

    def __init__(self, session: KafkaSessionPort, most: int) -> None:
        self._session = session
        self._left = self._most = most
        self._turn = 0

    async def add(self, count: int) -> None:
        """Call it once for each piece of work, with the rows that it made; one that made none is as good as a row.

        Raises InvalidRequest, which is to close the connection, when they are too many.
        """
        self._left -= count
        if self._left < 0:
            raise InvalidRequest(f"an answer of more than {self._most} rows: ask for less at once")
        self._turn += max(1, count)
        if self._turn >= FEW:
            self._turn = 0
            await self._session.pause()


@asynccontextmanager
async def counted(session: KafkaSessionPort) -> AsyncIterator[BatchedRows]:
    """`async with` while the answer is made: its memory is set aside meanwhile."""
    async with session.answering(MOST) as allowed:
        yield BatchedRows(session, max(LEAST, allowed // ROW))
