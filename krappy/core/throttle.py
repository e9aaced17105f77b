"""Limits the rate of some work by a pause after each piece."""

from __future__ import annotations


class Throttle:
    """Keeps the average rate of work, in bytes a second, within a limit."""

    def __init__(self) -> None:
        self._paid = 0.0  # the time (s) at which the work done so far is within the rate
        self._rate = 0

    def spend(self, size: int, rate: int, now: float) -> float:
        """Seconds to pause after `size` bytes of work, at the time `now` (s). `rate`: bytes a second; 0: no limit.

        When the rate changes, earlier work is forgotten.
        """
        if rate != self._rate:
            self._rate, self._paid = rate, now
        if not rate:
            return 0.0
        self._paid = max(self._paid, now) + size / rate
        return self._paid - now
