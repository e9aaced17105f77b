"""Whether this process stood still (SIGSTOP, a machine that slept), and may not know what was decided meanwhile.

When it wakes up, requests that came in that time are at hand before ZooKeeper tells it anything. Such a request may be
about a topic that was deleted and made anew since, or be meant for a new leader. So no request of any protocol begins
before this broker has been told, and has the topics that exist now (`until_told`). In less than STILL_S no topic is
made anew (see topics/scattered.py).

Batches that came before it stood still may be written after that. If this broker is the only replica in sync, it would
acknowledge them, since nobody else confirms what it writes. So it first makes sure that it still leads and the topic
still exists (partition/appender.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from krappy.core.cluster.presence import LEASE_MS
from krappy.waiting import Signal, wait_any

STILL_S = LEASE_MS / 1000
TICK_S = 0.1
PATIENCE_S = 10.0  # seconds; by then its session with ZooKeeper is over, so that it leads nothing


class Stillness:
    def __init__(self) -> None:
        self._ticked = math.inf  # when `run` had its last turn, on trio's clock
        self._was = False
        self._until = -math.inf  # how long requests wait
        self._told = Signal()

    @property
    def was(self) -> bool:
        """Whether it stood still, and has not been told yet what was decided meanwhile."""
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
