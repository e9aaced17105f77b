"""Turns: of all tasks with long work, one goes on in each round of the event loop, in the order they came.

So a task with little work waits for one of them, not for all.
"""

from __future__ import annotations

import trio

TURN = 0.005  # seconds for which one connection's requests are begun in one turn
PROOF = 16  # after long work, how many small reads a peer needs until it counts as one that asks for little
SMALL = 4 << 10  # bytes of a request that may begin while others wait for their turn or for memory


class Turns:
    def __init__(self) -> None:
        self._queue = trio.Lock()  # its holder goes on in the next round, and releases it at once

    @property
    def contended(self) -> bool:
        """Whether somebody waits for a turn: then nobody else should begin long work."""
        return self._queue.locked()

    async def next(self) -> None:
        """Returns when all that came before have had their turns."""
        async with self._queue:
            pass
