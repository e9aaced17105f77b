"""Which events of a partition went to the dead-letter topic: of the last ones a group knows it, until a restart."""

from __future__ import annotations

from bisect import insort

from krappy.core.runs import Span

MOST = 100


class Buried:
    """The last `MOST` runs."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[Span] = []  # ascending; no two of them touch

    def add(self, first: int, last: int) -> None:
        insort(self._spans, (first, last))
        joined: list[Span] = []
        for low, high in self._spans:
            if joined and joined[-1][1] + 1 == low:
                low = joined.pop()[0]
            joined.append((low, high))
        self._spans = joined[-MOST:]

    def among(self, first: int, last: int) -> list[Span]:
        """Those of these events, ascending."""
        return [(max(first, low), min(last, high)) for low, high in self._spans if low <= last and high >= first]

    def cut(self, end: int) -> None:
        """Forgets events from `end` on."""
        self._spans = [(low, min(high, end - 1)) for low, high in self._spans if low < end]
