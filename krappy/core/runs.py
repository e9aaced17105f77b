"""Runs of consecutive offsets in one state: the unsettled events of a native group in a partition.

A run is cut when a part of it changes, and joined with its neighbour when both are alike again. So the cost of an
operation depends on the number of runs that it touches, hardly ever on the number of events.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

WAITING = 0  # may be leased
LEASED = 1  # a member has it until `due`
DELAYED = 2  # given back with a delay: waits once `due` is reached
DEAD = 3  # leased as often as is allowed; goes to the dead-letter topic

Span = tuple[int, int]  # first and last offset, both included


class OffsetRun:
    """Offsets `first` to `last`, all in `state`. `deliveries`: how often each was leased, this time included."""

    __slots__ = ("deliveries", "due", "first", "last", "member", "state")

    def __init__(
        self, first: int, last: int, state: int = WAITING, deliveries: int = 0, due: int = 0, member: str | None = None
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.due = due  # ms; 0 unless leased or delayed
        self.member = member  # None unless leased

    def __len__(self) -> int:
        return self.last - self.first + 1

    def like(self, other: OffsetRun) -> bool:
        return (
            self.state == other.state
            and self.deliveries == other.deliveries
            and self.due == other.due
            and self.member == other.member
        )


class Runs:
    """Disjoint runs in ascending order. `_firsts`: their first offsets, for bisect."""

    def __init__(self) -> None:
        self._runs: list[OffsetRun] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[OffsetRun]:
        return iter(self._runs)

    @property
    def first(self) -> int | None:
        """The lowest offset of all."""
        return self._firsts[0] if self._firsts else None

    def at(self, offset: int) -> OffsetRun | None:
        """The run that holds `offset`."""
        index = bisect_right(self._firsts, offset) - 1
        if index >= 0 and offset <= self._runs[index].last:
            return self._runs[index]
        return None

    def between(self, first: int, last: int) -> list[OffsetRun]:
        """The runs that have an offset in `first` to `last`, uncut."""
        start, stop = self._slice(first, last)
        return self._runs[start:stop]

    def append(self, run: OffsetRun) -> OffsetRun:
        """Adds a run above all others, and returns it; or extends the last run, if they touch and are alike, and
        returns that."""
        if self._runs:
            before = self._runs[-1]
            if before.last + 1 == run.first and before.like(run):
                before.last = run.last
                return before
        self._runs.append(run)
        self._firsts.append(run.first)
        return run

    def carve(self, run: OffsetRun, first: int, last: int) -> OffsetRun:
        """Cuts the part of `run` that is in `first` to `last` into a run of its own, and returns it."""
        first, last = max(first, run.first), min(last, run.last)
        if run.first == first and run.last == last:
            return run
        index = bisect_right(self._firsts, run.first) - 1
        pieces = [
            OffsetRun(low, high, run.state, run.deliveries, run.due, run.member)
            for low, high in ((run.first, first - 1), (first, last), (last + 1, run.last))
            if low <= high
        ]
        self._runs[index : index + 1] = pieces
        self._firsts[index : index + 1] = [piece.first for piece in pieces]
        return pieces[1] if run.first < first else pieces[0]

    def remove(self, run: OffsetRun) -> None:
        index = bisect_right(self._firsts, run.first) - 1
        del self._runs[index], self._firsts[index]

    def join(self, first: int, last: int) -> None:
        """Joins runs that have become alike, from the neighbour below `first` to the one above `last`."""
        start, stop = self._slice(first - 1, last + 1)
        if stop - start < 2:
            return
        joined = [self._runs[start]]
        for run in self._runs[start + 1 : stop]:
            before = joined[-1]
            if before.last + 1 == run.first and before.like(run):
                before.last = run.last
            else:
                joined.append(run)
        if len(joined) < stop - start:
            self._runs[start:stop] = joined
            self._firsts[start:stop] = [run.first for run in joined]

    def _slice(self, first: int, last: int) -> tuple[int, int]:
        start = max(0, bisect_right(self._firsts, first) - 1)
        if start < len(self._runs) and self._runs[start].last < first:
            start += 1
        return start, max(start, bisect_right(self._firsts, last))
