"""Turns: one at a time, and those who wait are served by their addresses, one of each in turn.

So however many of one address wait, one of another address waits for a turn of each other address at most, and for the
one that is under way. What serves peers before they have logged in is given so: by then only their addresses are known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trio.lowlevel import ParkingLot

from krappy.errors import Overloaded
from krappy.hosts import network

MOST = 1_000  # of one address that wait at a time


class AddressTurns:
    def __init__(self) -> None:
        self._taken = False
        self._lines: dict[str, ParkingLot] = {}  # of those who wait, by address; the one whose turn is next is first

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        """Waits for a turn of this peer's address, which lasts as long as the `with`. Raises Overloaded when MOST of it
        wait."""
        if self._taken:
            line = self._lines.setdefault(network(host), ParkingLot())
            if len(line) >= MOST:
                raise Overloaded(f"{MOST} logins from {host} wait to be checked")
            await line.park()
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._lines:
            address = next(iter(self._lines))
            line = self._lines.pop(address)
            woken = line.unpark()
            if line:
                self._lines[address] = line  # behind the others
            if woken:  # else all of them have gone
                return
        self._taken = False
