"""Leases in the order of keys (`order = "key"`); the rules of that order are in `key_order`.

Here each event costs some work (about a microsecond), while plain leases cost by the run. After a restart the keys of
unsettled events are not known: `wanted` asks for them first, and no event beyond is leased before they are known.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, islice
from typing import Self

from krappy.core.key_order import KeyOrder
from krappy.core.leases import WINDOW, Lease, Leases, LogSlice
from krappy.core.runs import LEASED, WAITING, OffsetRun, Span


class KeyedLeases(Leases):
    """As `Leases`; every `LogSlice` has its keys."""

    def __init__(self, floor: int, *, max_deliveries: int, window: int = WINDOW) -> None:
        super().__init__(floor, max_deliveries=max_deliveries, window=window)
        self._keys = KeyOrder(floor)

    @classmethod
    def load(cls, flat: Sequence[int], *, max_deliveries: int, window: int = WINDOW) -> Self:
        leases = super().load(flat, max_deliveries=max_deliveries, window=window)
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
        keys, runs, frontier = self._keys, self._runs, self.frontier
        learns = log.start <= keys.known < log.end  # whether it has keys of events beyond the known ones
        taken: list[tuple[int, int]] = []  # (offset, deliveries)
        pairs: Iterator[tuple[int, Hashable | None]] = zip(_offsets(log.spans), log.keys, strict=True)
        if not self._counts[WAITING] and keys.known >= frontier:  # nothing below the frontier may be leased
            passed = sum(min(last + 1, frontier) - first for first, last in log.spans if first < frontier)
            pairs = islice(pairs, passed, None)
        for offset, key in pairs:
            if offset >= frontier:
                if learns:
                    pairs = chain([(offset, key)], pairs)
                    taken += [(one, 1) for one in self._lease_fresh_keys(pairs, member, due, log.end, left, mine)]
                break
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
        else:
            if learns:
                self.frontier = max(frontier, log.end)
        if learns:
            keys.known = max(keys.known, min(log.end, self.frontier))
        if taken:
            runs.join(taken[0][0], taken[-1][0])
        return _spans(taken)

    def _lease_fresh_keys(
        self,
        pairs: Iterator[tuple[int, Hashable | None]],
        member: str,
        due: int,
        end: int,
        left: int,
        mine: set[Hashable],
    ) -> list[int]:
        """Leases fresh events from the frontier on. Events on the way that may not be leased wait."""
        arrive, room = self._keys.arrive, self._room()
        taken: list[int] = []
        run: OffsetRun | None = None  # the run of the event before
        for offset, key in pairs:
            if not left or room <= 0:
                self.frontier = offset
                break
            room -= 1
            leased = arrive(offset, key, mine)
            if leased:
                taken.append(offset)
                left -= 1
            if run is None or run.last + 1 != offset or (run.state == LEASED) != leased:
                fresh = OffsetRun(offset, offset, LEASED, 1, due, member) if leased else OffsetRun(offset, offset)
                run = self._runs.append(fresh)
            else:
                run.last = offset
            self._counts[run.state] += 1
        else:
            self.frontier = end
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


def _offsets(spans: Sequence[Span]) -> Iterator[int]:
    return chain.from_iterable(range(first, last + 1) for first, last in spans)


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
