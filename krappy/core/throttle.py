"""Limits the rate of some work by a pause after each piece."""

from __future__ import annotations

import math

LEAST_PAUSE = 0.001  # s


class Throttle:
    """Keeps the average rate of work, in bytes a second, within a limit. `steps`: how many pieces were done."""

    def __init__(self) -> None:
        self.steps = 0
        self._paid = 0.0  # the time (s) at which the work done so far is within the rate
        self._rate = 0

    def spend(self, size: int, rate: int, now: float) -> float:
        """Seconds to pause after `size` bytes of work, at the time `now` (s). `rate`: bytes a second; 0: no limit.

        When the rate changes, earlier work is forgotten.
        """
        self.steps += 1
        if rate != self._rate:
            self._rate, self._paid = rate, now
        if not rate:
            return 0.0
        self._paid = max(self._paid, now) + size / rate
        return self._paid - now


class ReplicationQuota:
    """How fast throttled replicas may be copied, all of them together (KIP-73). Times are seconds of one clock.

    What is copied counts when it is done, and others wait until the average is within the rate again. So a piece may be
    larger than the rate allows in a second; `share` keeps pieces small.
    """

    def __init__(self) -> None:
        self._rate: int | None = None
        self._paid = -math.inf  # when what was copied is within the rate

    @property
    def rate(self) -> int | None:
        """Bytes a second; None: no limit; 0: nothing. When it changes, what was copied before is forgotten."""
        return self._rate

    @rate.setter
    def rate(self, rate: int | None) -> None:
        if rate != self._rate:
            self._rate, self._paid = rate, -math.inf

    def spend(self, size: int, now: float) -> None:
        """Notes that `size` bytes were copied."""
        if self._rate:
            self._paid = max(self._paid, now) + size / self._rate

    def pause(self, now: float) -> float:
        """Seconds until more may be copied; infinite if nothing may. Less than `LEAST_PAUSE` counts as none: a clock
        that is too coarse to see it pass would be waited for again and again."""
        if self._rate is None:
            return 0.0
        left = math.inf if self._rate == 0 else self._paid - now
        return left if left >= LEAST_PAUSE else 0.0

    def share(self, among: int = 1) -> int | None:
        """How many bytes each of so many replicas should take at once: its share of a second's. None: no limit."""
        return None if self._rate is None else max(1, self._rate // max(1, among))


class ReplicationQuotas:
    """`leader`: of what this broker sends to throttled replicas; `follower`: of what it copies."""

    def __init__(self) -> None:
        self.leader, self.follower = ReplicationQuota(), ReplicationQuota()
