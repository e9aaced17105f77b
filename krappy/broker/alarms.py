"""One task that knows what is due when: a heap of times, and a sleep until the first of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

import trio

FEW = 16  # rung in one go: others have their turn when very many are due at one moment


class Alarmed(Protocol):
    alarm: int | None  # when it will be rung (ms); None: never

    def ring(self, now: int) -> None: ...


class Alarms:
    """Rings what was set once its time comes. Setting one costs next to nothing when it is not the earliest."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, Alarmed]] = []
        self._count = 0  # breaks ties: what is alarmed can't be compared
        self._earlier = trio.Event()

    def set(self, what: Alarmed, due: int) -> None:
        """Rings `what` at `due` (ms), or earlier if that was set before. It sets itself again if it needs to."""
        if what.alarm is not None and what.alarm <= due:
            return
        what.alarm = due
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, what))
        if self._heap[0][2] is what:
            self._earlier.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            now = self._now_ms()
            rung = 0
            while self._heap and self._heap[0][0] <= now:
                due, _, what = heapq.heappop(self._heap)
                if what.alarm == due:  # else an earlier one was set after it, and has rung
                    what.alarm = None
                    what.ring(now)
                    rung += 1
                    if rung % FEW == 0:
                        await trio.lowlevel.checkpoint()
            self._earlier = trio.Event()
            # The clock may jump (it is the wall's): look again now and then rather than sleep for hours.
            seconds = min(60.0, max(0.001, (self._heap[0][0] - now) / 1000)) if self._heap else 60.0
            with trio.move_on_after(seconds):
                await self._earlier.wait()
