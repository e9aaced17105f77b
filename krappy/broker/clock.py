"""The broker's two clocks, in ms."""

from __future__ import annotations

import time

TOLERATED_MS = 1000  # the drift between the two clocks that does not count as setting the clock


class Clock:
    """`now_ms` is the wall clock: for the timestamps of events, and for times that are shown or stored. It may be set,
    forward and back. `steady_ms` is for durations and deadlines: nobody sets it. It starts at the wall clock's time, so
    that it can be compared with times that were stored before the start."""

    def __init__(self) -> None:
        self._started = self.now_ms()
        self._began = self._started - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return self._began + time.monotonic_ns() // 1_000_000

    @property
    def ran_ms(self) -> int:
        """How long the broker has run."""
        return self.steady_ms() - self._started

    def later_ms(self) -> int:
        """The time on the clock that is ahead: for when a producer was seen last. The producer is forgotten some time
        after that, measured by the clock that is behind. So if the wall clock was set meanwhile, it is forgotten too
        late rather than too early."""
        return max(self.now_ms(), self.steady_ms())

    @property
    def ahead_ms(self) -> int:
        """How far the wall clock is ahead of the steady one: by how much it was set since the start."""
        return self.now_ms() - self.steady_ms()

    @property
    def was_set(self) -> bool:
        """Whether somebody has set the wall clock since the start. Then stored times must be written again, by the wall
        clock as it is now."""
        return abs(self.ahead_ms) > TOLERATED_MS

    def as_told(self, steady_ms: int) -> int:
        """The wall clock's time at `steady_ms`, unless somebody sets it until then."""
        return steady_ms + self.ahead_ms
