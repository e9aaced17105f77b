"""Turns, one at a time. Those who wait are served by their addresses: one of each address in turn (`AddressLines`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from krappy.core.address_lines import AddressLines

MOST = 1_000  # so many of one address may wait at a time


class AddressTurns:
    def __init__(self) -> None:
        self._taken = False
        self._lines: AddressLines[trio.Event] = AddressLines(MOST)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._lines)

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        """Waits for a turn of the address `host`. The turn lasts as long as the `with`. Raises Overloaded when MOST of
        this address wait."""
        if self._taken:
            await self._its_turn(host)
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _its_turn(self, host: str) -> None:
        turn = trio.Event()
        self._lines.add(host, turn)
        try:
            await turn.wait()
        except BaseException:  # its peer has left
            self._lines.drop(host, turn)
            if turn.is_set():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        turn = self._lines.pop()
        if turn is None:
            self._taken = False
        else:
            turn.set()
