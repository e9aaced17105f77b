"""Where each leader epoch of a log begins (KIP-101): by it a client whose leader was another one finds out whether
what it has read is still there.

A batch carries its epoch, so the list can be made anew from batches; but those bytes are under no checksum, so an epoch
is taken from there only when it is higher than all before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Epochs:
    """Pairs (epoch, first offset), both rising. To be changed by one thread at a time; others may read meanwhile."""

    def __init__(self, known: Iterable[tuple[int, int]] = ()) -> None:
        self._known = tuple(known)

    def note(self, epoch: int, offset: int) -> None:
        """A batch of this epoch begins here. One below 0 says nothing of it."""
        if epoch >= 0 and (not self._known or epoch > self._known[-1][0]):
            self.lead(epoch, offset)

    def lead(self, epoch: int, offset: int) -> None:
        """This is the epoch of all from here on: there is no higher one, and none that begins here or later."""
        self._known = (*(each for each in self._known if each[0] < epoch and each[1] < offset), (epoch, offset))

    def cut(self, end: int) -> None:
        """The log ends here: no epoch that began here or later has events."""
        self._known = tuple(each for each in self._known if each[1] < end)

    def kept(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Those of the offsets from `start` to `end`, which is not one of them."""
        known = tuple(each for each in self._known if each[1] < end)
        first = bisect_right(known, start, key=lambda each: each[1]) - 1
        return known[max(0, first) :]

    def end_of(self, epoch: int, end: int) -> tuple[int, int] | None:
        """The highest epoch up to this one, and the offset behind its last event: `end` of the log for the last epoch.

        None: a later one than there has been (as Kafka's OffsetsForLeaderEpoch).
        """
        at = bisect_right(self._known, epoch, key=lambda each: each[0])
        if at < len(self._known):
            return (self._known[at - 1][0] if at else epoch), min(self._known[at][1], end)
        return (epoch, end) if self._known and self._known[-1][0] == epoch else None

    def at(self, offset: int) -> int:
        """The epoch of the event with this offset, or of the next one; -1 where that is not known."""
        at = bisect_right(self._known, offset, key=lambda each: each[1])
        return self._known[at - 1][0] if at else -1
