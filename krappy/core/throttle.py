"""A bound on how fast something is done, kept by pauses behind each piece of it."""

from __future__ import annotations


class Throttle:
    """Work that is told of piece by piece, no more bytes a second than allowed, on average."""

    def __init__(self) -> None:
        self._paid = 0.0  # the time by which what was done so far may have been done
        self._rate = 0

    def spend(self, size: int, rate: int, now: float) -> float:
        """Seconds to pause, now (s) that `size` bytes have been done. `rate`: bytes a second; 0: no limit.

        Under another rate than the last time what was done before is forgotten.
        """
        if rate != self._rate:
            self._rate, self._paid = rate, now
        if not rate:
            return 0.0
        self._paid = max(self._paid, now) + size / rate
        return self._paid - now
