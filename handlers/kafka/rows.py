"""Long answers: they are made in several turns, and the memory that is free bounds their size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import perf_counter

from krappy.errors import InvalidRequest
from krappy.ports import KafkaSessionPort

ROW = 512  # bytes of memory that a row of an answer takes at most, without the names in it
FEW = 200  # rows that are made in one turn
TURN = 0.005  # seconds of one turn of work whose steps may take long
LEAST = 20_000  # rows that an answer may always have: one for each item that a request can name
MOST = 50_000 * ROW


class BatchedRows:
    """Counts the rows of one answer."""

    def __init__(self, session: KafkaSessionPort, most: int) -> None:
        self._session = session
        self._left = self._most = most
        self._turn = 0

    async def add(self, count: int) -> None:
        """Called after each piece of work, with the number of rows that it made; work without rows counts as one row.

        Raises InvalidRequest when the answer has too many rows; the handler lets it close the connection.
        """
        self._left -= count
        if self._left < 0:
            raise InvalidRequest(f"an answer of more than {self._most} rows: ask for less at once")
        self._turn += max(1, count)
        if self._turn >= FEW:
            self._turn = 0
            await self._session.pause()


async def in_turns(session: KafkaSessionPort, steps: Iterator[None]) -> None:
    """Does work of many steps, in as many turns as it needs."""
    until = perf_counter() + TURN
    for _ in steps:
        if perf_counter() >= until:
            await session.pause()
            until = perf_counter() + TURN


@asynccontextmanager
async def counted(session: KafkaSessionPort) -> AsyncIterator[BatchedRows]:
    """`async with` around the making of an answer: its memory counts against the budget meanwhile."""
    async with session.answering(MOST) as allowed:
        yield BatchedRows(session, max(LEAST, allowed // ROW))
