"""Which history of a log a group has read (KIP-101, KIP-320).

An unclean election, or a loss of power, takes events from a log's end. Later ones get their offsets, and have another
leader epoch. Each epoch has one leader, so all logs that have an event of the epoch have the same events before it. The
group knows the epochs of what it has read. It asks the log where the last of them ends. If that is before its position,
or the log lacks that epoch, the group goes back to where the two histories part.

Only the last `MOST` epochs are kept. If a log has none of them, the group goes back to where the first epoch began that
it has ever known: it may get events again, and misses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from krappy.core.runs import Span

MOST = 4
_REFUSAL = "not the state of a group's partition: its leader epochs"
_VERSION = 3  # of a state that begins with a lineage; behind that comes one of version 1


class Lineage:
    """`pairs`: (leader epoch, the offset from which on events before the position are of this epoch), both ascending.
    Events from `since` on that are before all of these have earlier epochs, which are not known any more."""

    __slots__ = ("pairs", "since")

    def __init__(self, pairs: Iterable[tuple[int, int]] = (), since: int | None = None) -> None:
        known = tuple(pairs)
        self.pairs = known[-MOST:]
        self.since = since if since is not None else known[0][1] if known else 0

    @property
    def last(self) -> int:
        """The epoch of the event before the position, as Kafka has it for a committed offset; -1: it is not known."""
        return self.pairs[-1][0] if self.pairs else -1

    def note(self, epoch: int, first: int) -> None:
        """The group has read events of this epoch, which begin at `first` or behind it. Ignored if it knows this epoch
        or a later one, and if the epoch is not known (-1)."""
        if epoch > self.last:
            self.since = self.since if self.pairs else first
            self.pairs = (*(each for each in self.pairs if each[1] < first), (epoch, first))[-MOST:]

    def cut(self, end: int) -> None:
        """The position is at `end` now."""
        self.pairs = tuple(each for each in self.pairs if each[1] < end)

    def parts(self, told: tuple[int, int], position: int) -> int | None:
        """The offset at which a log parts from what was read before `position`; None: the log has all of that. `told`:
        the log's answer: the highest epoch up to `last` that it has, and the offset behind that epoch's events. The
        caller must ask the log again, for the position that this gives."""
        epoch, end = told
        at = min([end, *(first for each, first in self.pairs if each > epoch)])
        if at >= position:
            return None
        # Before the first known epoch, the two histories can't be compared.
        return min(at, self.since) if self.pairs and at <= self.pairs[0][1] else at

    def others(self, epoch: int, first: int, last: int) -> list[Span]:
        """Those of these events that are known to be of another epoch than this one."""
        found: list[Span] = []
        ends = [start - 1 for _, start in self.pairs[1:]]
        for (each, start), end in zip(self.pairs, [*ends, last], strict=False):
            low, high = max(first, start), min(last, end)
            if each != epoch and low <= high:
                found.append((low, high))
        return found

    # --- as plain numbers

    def dump(self) -> list[int]:
        """Empty: no epoch is known. Else `since`, then each pair."""
        return [self.since, *(number for pair in self.pairs for number in pair)] if self.pairs else []

    @classmethod
    def load(cls, flat: Sequence[int]) -> Lineage:
        """Raises ValueError for what `dump` did not give."""
        pairs = list(zip(flat[1::2], flat[2::2], strict=False))
        ascending = all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
        if not flat:
            return cls()
        if len(flat) % 2 == 0 or not 0 < len(pairs) <= MOST or min(flat) < 0 or not ascending or flat[0] > flat[2]:
            raise ValueError(_REFUSAL)
        return cls(pairs, flat[0])


def with_lineage(lineage: Sequence[int], flat: list[int]) -> list[int]:
    """What `Leases.dump` gives: `flat`, which has no epochs, behind what `Lineage.dump` gave."""
    return [_VERSION, len(lineage), *lineage, *flat] if lineage else flat


def split_lineage(flat: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """(the lineage, the rest) of what `with_lineage` gave. Raises ValueError for a lineage that is too short."""
    if len(flat) < 2 or flat[0] != _VERSION:
        return (), flat
    count = flat[1]
    lineage = flat[2 : 2 + count] if count > 0 else ()
    if not lineage or len(lineage) < count:
        raise ValueError(_REFUSAL)
    return lineage, flat[2 + count :]
