"""Turns: a few tasks have one at a time, and the others wait in lines, by user or by address (`AddressLines`).

One user may have as many turns as are left for all others: half, if there is no other. Those who wait are served by
user, one of each in turn. So whoever asks for many turns, or has his for long, keeps nobody else waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from krappy.core.address_lines import AddressLines
from krappy.hosts import network


class UserTurns:
    """`together`: how many there are at a time. With one, users take it in turn. `most`: how many of one user may wait;
    None: something else bounds their number."""

    def __init__(self, together: int = 1, most: int | None = None) -> None:
        self._together = together
        self._taken: Counter[str] = Counter()  # by user, or by the address of one who has not logged in
        self._lines: AddressLines[trio.Event] = AddressLines(most)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._lines)

    @asynccontextmanager
    async def one(self, who: str) -> AsyncIterator[None]:
        """Waits for a turn of this user, or address, which lasts as long as the `with`. Raises Overloaded if `most` of
        this user wait already."""
        who = network(who)
        if self._may(who):
            self._taken[who] += 1
        else:
            await self._its_turn(who)
        try:
            yield
        finally:
            self._give_back(who)

    def _may(self, who: str) -> bool:
        return self._taken[who] < self._together - self._taken.total()

    async def _its_turn(self, who: str) -> None:
        turn = trio.Event()
        self._lines.add(who, turn)
        try:
            await turn.wait()
        except BaseException:  # its peer has left
            self._lines.drop(who, turn)
            if turn.is_set():
                self._give_back(who)
            raise

    def _give_back(self, who: str) -> None:
        self._taken -= Counter((who,))
        while (found := self._lines.pop_for(self._may)) is not None:
            whose, turn = found
            self._taken[whose] += 1
            turn.set()
