"""Leases in the order of keys (`order = "key"`); the rules of that order are in `key_order`.

Here each event costs some work (up to two microseconds), while plain leases cost by the run. After a restart the keys
of unsettled events are not known: `wanted` asks for them first, and no event beyond is leased before they are known.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice
from typing import Self

from krappy.core.key_order import KeyOrder, offsets_of
from krappy.core.leases import Lease, Leases, LogSlice
from krappy.core.runs import LEASED, WAITING, OffsetRun

WINDOW = 10_000  # unsettled events, each of which is kept


class KeyedLeases(Leases):
    """As `Leases`; every `LogSlice` has its keys."""

    def __init__(self, floor: int, *, max_deliveries: int, window: int = WINDOW) -> None:
        super().__init__(floor, max_deliveries=max_deliveries, window=window)
        self._keys = KeyOrder(floor)

    @classmethod
    def load(cls, flat: Sequence[int], *, max_deliveries: int, window: int = WINDOW, now: int = 0) -> Self:
        leases = super().load(flat, max_deliveries=max_deliveries, window=window, now=now)
        leases._keys = KeyOrder(leases.floor)
        return leases

    def wanted(self, now: int, *, alone: bool = True) -> int | None:
        self.expire(now)
        keys = self._keys
        if keys.known < self.frontier:
            unread = self._runs.between(keys.known, self.frontier)
            keys.known = max(keys.known, unread[0].first) if unread else self.frontier
            if unread:
                return keys.known
        return super().wanted(now, alone=alone)

    def _first_waiting(self) -> int | None:
        return min(self._keys.open, default=None)

    def _lease(self, member: str, due: int, log: LogSlice, left: int, alone: bool, mine: set[Hashable]) -> list[Lease]:
        assert log.keys is not None, "key order needs keys"
        keys, frontier = self._keys, self.frontier
        learns = log.start <= keys.known < log.end  # whether it has keys of events beyond the known ones
        passed = sum(min(last + 1, frontier) - first for first, last in log.spans if first < frontier)
        taken: list[Lease] = []
        if self._counts[WAITING] or keys.known < frontier:  # else nothing below the frontier may be leased
            taken, left = self._lease_passed(member, due, log, passed, learns, left, alone, mine)
        if learns:
            taken += self._lease_fresh_keys(member, due, log, passed, left, mine)
            keys.known = max(keys.known, min(log.end, self.frontier))
        if taken:
            self._runs.join(taken[0].first, taken[-1].last)
        return _joined(taken)

    def _lease_passed(
        self,
        member: str,
        due: int,
        log: LogSlice,
        count: int,
        learns: bool,
        left: int,
        alone: bool,
        mine: set[Hashable],
    ) -> tuple[list[Lease], int]:
        """Leases those of the first `count` events that may be leased: the first `count` are below the frontier.
        Returns the leases, and how many more events may be leased."""
        assert log.keys is not None
        keys, runs = self._keys, self._runs
        taken: list[tuple[int, int]] = []  # (offset, deliveries)
        for offset, key in islice(zip(offsets_of(log.spans), log.keys, strict=True), count):
            if offset >= keys.known and learns:
                run = runs.at(offset)
                if run is not None:
                    keys.add(offset, key, held_back=run.state != WAITING)
            if not left or not (offset in keys.open or (key in mine and keys.is_next(offset, key))):
                continue
            run = runs.at(offset)
            assert run is not None
            if run.deliveries >= self._suspect:
                if taken or not alone:
                    left = 0
                    continue
                left = 1
            run = runs.carve(run, offset, offset)
            self._give(run, member, due)
            taken.append((offset, run.deliveries))
            keys.lease(offset)
            mine.add(key)
            left -= 1
        return _spans(taken), left

    def _lease_fresh_keys(
        self, member: str, due: int, log: LogSlice, passed: int, left: int, mine: set[Hashable]
    ) -> list[Lease]:
        """Leases events from the frontier on: all but the first `passed` of `log`. Those on the way that may not be
        leased wait."""
        assert log.keys is not None
        fresh = [(max(first, self.frontier), last) for first, last in log.spans if last >= self.frontier]
        waiting, stop = self._keys.arrive(fresh, log.keys[passed:], left, self._room(), mine)
        self.frontier = end = max(self.frontier, log.end if stop is None else stop)
        taken: list[Lease] = []
        waits = iter([*waiting, end])
        wait = next(waits)
        for first, last in fresh:
            last = min(last, end - 1)
            while first <= last:
                until = min(last + 1, wait)
                if first < until:
                    self._runs.append(OffsetRun(first, until - 1, LEASED, 1, due, member))
                    self._counts[LEASED] += until - first
                    taken.append(Lease(first, until - 1, 1))
                    first = until
                while until == wait <= last:
                    until, wait = until + 1, next(waits)
                if first < until:
                    self._runs.append(OffsetRun(first, until - 1))
                    self._counts[WAITING] += until - first
                first = until
        return taken

    def _settle(self, run: OffsetRun) -> None:
        super()._settle(run)
        self._keys.settle(run.first, run.last)

    def _take_back(self, runs: list[OffsetRun], due: int) -> None:
        offsets = [offset for run in runs for offset in range(run.first, run.last + 1)]
        super()._take_back(runs, due)
        for offset in self._keys.give_back(offsets):
            self._call_back(offset)
        for offset in offsets:
            run = self._runs.at(offset)
            if run is not None and run.state != WAITING:
                self._keys.hold_back(offset)

    def _call_back(self, offset: int) -> None:
        """Takes a leased event back because an earlier one of its key went back. That alone never makes it dead."""
        run = self._runs.at(offset)
        assert run is not None
        run = self._runs.carve(run, offset, offset)
        self._turn(run, WAITING)
        run.deliveries = min(run.deliveries, self._max_deliveries - 1)
        self._runs.join(offset, offset)

    def _let_go(self, run: OffsetRun) -> None:
        super()._let_go(run)
        for offset in range(run.first, run.last + 1):
            self._keys.free(offset)

    def _condemn(self, run: OffsetRun) -> None:
        super()._condemn(run)
        for offset in range(run.first, run.last + 1):
            self._keys.hold_back(offset)

    def trim(self, start: int) -> None:
        super().trim(start)
        self._keys.known = max(self._keys.known, start)

    def cut(self, end: int) -> None:
        super().cut(end)
        self._keys.known = min(self._keys.known, end)

    def reset(self, offset: int) -> None:
        super().reset(offset)
        self._keys = KeyOrder(offset)


def _spans(taken: list[tuple[int, int]]) -> list[Lease]:
    """Single (offset, deliveries), ascending, as leases."""
    spans: list[Lease] = []
    first = last = deliveries = -1
    for offset, count in taken:
        if offset != last + 1 or count != deliveries:
            if last >= 0:
                spans.append(Lease(first, last, deliveries))
            first, deliveries = offset, count
        last = offset
    if last >= 0:
        spans.append(Lease(first, last, deliveries))
    return spans


def _joined(leases: list[Lease]) -> list[Lease]:
    """Ascending leases, without borders between those that touch and are alike."""
    found = leases[:1]
    for each in leases[1:]:
        before = found[-1]
        if before.last + 1 == each.first and before.deliveries == each.deliveries:
            found[-1] = Lease(before.first, each.last, each.deliveries)
        else:
            found.append(each)
    return found
