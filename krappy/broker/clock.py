"""The broker's two clocks, in ms."""

from __future__ import annotations

import time

TOLERATED_MS = 1000  # that two clocks of one machine come apart by themselves


class Clock:
    """`now_ms` is the wall's: for the times of events, and for what people and disks are told. It may be set, forward
    and back. `steady_ms` is for durations and deadlines: nobody sets it. It begins as the wall's, so that a time kept
    by the broker before can be compared with it."""

    def __init__(self) -> None:
        self._began = self.now_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return self._began + time.monotonic_ns() // 1_000_000

    @property
    def ahead_ms(self) -> int:
        """How far the wall's clock is ahead of the steady one, since it was set."""
        return self.now_ms() - self.steady_ms()

    @property
    def was_set(self) -> bool:
        """Whether somebody has set the wall's clock since: what was written before is to be written again, by it."""
        return abs(self.ahead_ms) > TOLERATED_MS

    def as_told(self, steady_ms: int) -> int:
        """What the wall's clock says, or will say if nobody sets it, at that time."""
        return steady_ms + self.ahead_ms
