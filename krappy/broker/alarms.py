"""One task for many alarms: a heap of times, and a sleep until the first of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

import trio

FEW = 16  # alarms that are rung in one turn


class Alarmed(Protocol):
    alarm: int | None  # when it will be rung (ms); None: no alarm is set

    def ring(self, now: int) -> None: ...


class Alarms:
    """Rings each alarm when it is due. Setting one is cheap, and wakes the task only if it is the earliest."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, Alarmed]] = []
        self._count = 0  # breaks ties in the heap: the objects themselves can't be compared
        self._earlier = trio.Event()

    def set(self, what: Alarmed, due: int) -> None:
        """Rings `what` at `due` (ms), or earlier if an earlier alarm is set. Once rung, it has no alarm."""
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
                if what.alarm == due:  # else an earlier alarm was set after this one, and has rung
                    what.alarm = None
                    what.ring(now)
                    rung += 1
                    if rung % FEW == 0:
                        await trio.lowlevel.checkpoint()
            self._earlier = trio.Event()
            # `now_ms` may be the wall clock, which can be set: look again each minute rather than sleep for hours.
            seconds = min(60.0, max(0.001, (self._heap[0][0] - now) / 1000)) if self._heap else 60.0
            with trio.move_on_after(seconds):
                await self._earlier.wait()
