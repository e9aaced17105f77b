"""Whose turn it is: of all that take long, one goes on in each round of the event loop, in the order of their coming.

However many they are, who asks for little waits for one of them, and not for all.
"""

from __future__ import annotations

import trio

TURN = 0.005  # seconds for which one connection's requests are begun at a stretch
PROOF = 16  # times that a peer has to ask for little until it counts again as one that asks for little
SMALL = 4 << 10  # bytes of a request that begins although others wait for their turn, or for memory


class Turns:
    def __init__(self) -> None:
        self._queue = trio.Lock()  # who holds it goes on in the next round, and gives it on at once

    @property
    def contended(self) -> bool:
        """Somebody waits for a turn: nobody else should begin with what may take long."""
        return self._queue.locked()

    async def next(self) -> None:
        """Returns when those that came before have had their turns."""
        async with self._queue:
            pass
