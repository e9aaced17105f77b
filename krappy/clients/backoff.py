"""Pauses between retries: exponential, with jitter, so that a thousand clients of a restarted broker spread out
(Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015: "equal jitter")."""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

FIRST, LONGEST = 0.05, 2.0  # seconds

# Not the program's own random numbers: it may have seeded them, and a thousand workers may have the same seed.
chance = SystemRandom()


class Backoff:
    """The bound doubles from `first` to `longest` seconds; each pause lies between half of the bound and all of it.

    `random` returns floats from 0 to 1."""

    def __init__(
        self, random: Callable[[], float] = chance.random, first: float = FIRST, longest: float = LONGEST
    ) -> None:
        self._random = random
        self._first, self._longest = first, longest
        self._next = first

    @property
    def is_long(self) -> bool:
        """Whether it has come to the longest pauses."""
        return self._next >= self._longest

    def pause(self) -> float:
        """Seconds to wait before the next try."""
        pause = self._next
        self._next = min(self._longest, pause * 2)
        return pause * (0.5 + self._random() / 2)

    def reset(self) -> None:
        self._next = self._first
