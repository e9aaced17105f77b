"""Carries out a plan: faults begin and end at their times, and each is reported."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.chaos.faults.base import KINDS, Fault, Planned
from tests.chaos.world import World

TICK = 0.1


@dataclass
class Trouble:
    """`done`: how often each kind of fault began."""

    world: World
    plan: Sequence[Planned]
    tell: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        """Returns when the time is over and all faults have ended."""
        began = time.monotonic()
        waiting = list(self.plan)
        ending: list[tuple[float, int, Fault]] = []
        while True:
            now = time.monotonic() - began
            if ending and (ending[0][0] <= now or now > seconds):
                self._end(heapq.heappop(ending)[2])
            elif waiting and waiting[0].at <= now < seconds:
                planned = waiting.pop(0)
                fault = KINDS[planned.kind](Random(planned.seed))
                if self._begin(fault, planned):
                    heapq.heappush(ending, (time.monotonic() - began + planned.length, sum(self.done.values()), fault))
            elif now >= seconds:
                return
            else:
                self.world.tend()
                time.sleep(TICK)

    def _begin(self, fault: Fault, planned: Planned) -> bool:
        told = fault.begin(self.world)
        if not told:
            self.tell(f"{planned.kind}: not now")
            return False
        self.done[planned.kind] += 1
        self.tell(f"{planned.kind}: {told}; for {planned.length:.1f} s")
        return True

    def _end(self, fault: Fault) -> None:
        if told := fault.end(self.world):
            self.tell(f"{fault.kind}: over: {told}")
