"""Whether this process stood still (SIGSTOP, a machine that slept), and may not know what was decided meanwhile.

What came to it in that time is at hand when it wakes up, before ZooKeeper tells it anything. That may be about a topic
that was deleted and made anew since, or meant for who leads now. So no request of any protocol begins before this
broker was told, and its topics are those that there are (`until_told`). In less than STILL_S nothing is made anew (see
topics/scattered.py).

Batches that came before it stood still may be written after. Who is the only replica in sync would acknowledge them,
since nobody else confirms what it writes: it makes sure, too (partition/appender.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from krappy.core.cluster.presence import LEASE_MS
from krappy.waiting import Signal, wait_any

STILL_S = LEASE_MS / 1000
TICK_S = 0.1
PATIENCE_S = 10.0  # by then its session with ZooKeeper is over, so that it leads nothing


class Stillness:
    def __init__(self) -> None:
        self._ticked = math.inf  # when `run` had its last turn, on trio's clock
        self._was = False
        self._until = -math.inf  # how long requests wait
        self._told = Signal()

    @property
    def was(self) -> bool:
        """Whether it stood still, and was not told since what was decided meanwhile."""
        now = trio.current_time()
        if now - self._ticked > STILL_S:
            if not self._was:
                self._until = now + PATIENCE_S
            self._was = True
        return self._was

    async def until_told(self) -> None:
        """Returns once it knows what was decided while it stood still; at the latest PATIENCE_S after it woke up."""
        await wait_any([self._told], lambda: not self.was, self._until - trio.current_time())

    async def run(self, is_told: Callable[[], bool]) -> None:
        """Until cancelled. `is_told()`: whether it holds a read lease, so that it knows all that was decided before,
        and has closed the topics that are gone."""
        try:
            while True:
                self._was = self.was and not is_told()
                self._ticked = trio.current_time()
                if not self._was:
                    self._told.fire()
                await trio.sleep(TICK_S)
        finally:
            self._ticked = math.inf
