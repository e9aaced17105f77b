"""Where each leader epoch of a log begins (KIP-101): with it a client finds out after a change of the leader whether
the events that it has read are still there.

Each batch has its epoch, so the list can be made anew from batches; but no checksum covers those bytes. So an epoch is
believed only if it is possible: epochs never fall along a log, and rise by one at each election. A batch with an
impossible epoch is damaged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

LAST = 2**31 - 1  # the highest that Kafka's protocol can tell
FAR = 1 << 20  # more elections than can lie between what is known of a partition and what its log has


def is_far(epoch: int, known: int) -> bool:
    """Whether this leader epoch is so far above a known one that it must be damaged."""
    return epoch > min(LAST, known + FAR)


def fall(epoch: int, before: int) -> str:
    """Why a batch can't have this epoch behind events of `before`; empty if it can. -1: it is not known."""
    return f"its leader epoch is {epoch}, and the events before it have {before}" if -1 != epoch < before else ""


class Epochs:
    """Pairs (epoch, first offset), both ascending. One thread at a time may change them. Others may read meanwhile, so
    each method that reads takes the tuple of pairs once."""

    def __init__(self, known: Iterable[tuple[int, int]] = ()) -> None:
        self._known = tuple(known)

    @property
    def known(self) -> tuple[tuple[int, int], ...]:
        """All pairs: another tuple after each change."""
        return self._known

    def note(self, epoch: int, offset: int) -> None:
        """Notes the epoch of a batch at `offset`. An epoch below 0 is not known, and ignored."""
        if epoch >= 0 and (not self._known or epoch > self._known[-1][0]):
            self.lead(epoch, offset)

    def misfit(self, epoch: int) -> str:
        """Why a batch behind all that is known can't have this epoch; empty if it can."""
        known = self._known
        if not known:
            return fall(epoch, -1)
        last = known[-1][0]
        return fall(epoch, last) or (f"its leader epoch is {epoch}, far beyond {last}" if is_far(epoch, last) else "")

    def mismatch(self, epoch: int, offset: int) -> str:
        """Why a batch that begins at `offset`, among what is known, can't have this epoch; empty if it can."""
        known = self.at(offset)
        if epoch == known or -1 in (epoch, known):
            return ""
        return f"its leader epoch is {epoch}, and it was written in {known}"

    def lead(self, epoch: int, offset: int) -> None:
        """Begins this epoch at `offset`, and removes epochs that are as high or higher, or begin there or later."""
        self._known = (*(each for each in self._known if each[0] < epoch and each[1] < offset), (epoch, offset))

    def cut(self, end: int) -> None:
        """To be called when the log ends at `end`: removes epochs that begin there or later."""
        self._known = tuple(each for each in self._known if each[1] < end)

    def kept(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """The pairs for the offsets from `start` to before `end`."""
        known = self._known
        stop = bisect_left(known, end, key=lambda each: each[1])
        first = bisect_right(known, start, hi=stop, key=lambda each: each[1]) - 1
        return known[max(0, first) : stop]

    def end_of(self, epoch: int, end: int) -> tuple[int, int] | None:
        """(the highest known epoch up to `epoch`, the offset behind its last event). `end`: the log's, for the last
        epoch.

        None: `epoch` is higher than all known ones (as in Kafka's OffsetsForLeaderEpoch).
        """
        known = self._known
        at = bisect_right(known, epoch, key=lambda each: each[0])
        if at < len(known):
            return (known[at - 1][0] if at else epoch), min(known[at][1], end)
        return (epoch, end) if known and known[-1][0] == epoch else None

    def diverging(self, epoch: int, offset: int, end: int) -> tuple[int, int] | None:
        """For a leader, of a follower whose log ends at `offset` with an event of this epoch: (the highest epoch up to
        that, the offset behind its last event) if the two logs differ, None if not (KIP-595). `end`: of this log.

        The logs differ, too, if the leader's event there has an earlier epoch. Then that one is the highest epoch."""
        now = Epochs(self._known)
        known = now.at(offset - 1)
        highest = epoch if known < 0 else min(epoch, known)
        found = now.end_of(highest, end) or ((now._known[-1][0], end) if now._known else (-1, 0))
        return found if offset > 0 and (found[0] < epoch or found[1] < offset) else None

    def common(self, diverging: tuple[int, int], end: int) -> int:
        """For a follower: where to cut its log after its leader has told what `diverging` gave. `end`: of this log."""
        epoch, offset = diverging
        known = self._known
        after = bisect_right(known, epoch, key=lambda each: each[0])
        return min(offset, known[after][1] if after < len(known) else end)

    def start_of(self, epoch: int) -> int | None:
        """The first offset of this epoch; None if it is not known."""
        known = self._known
        at = bisect_right(known, epoch, key=lambda each: each[0])
        return known[at - 1][1] if at and known[at - 1][0] == epoch else None

    def at(self, offset: int) -> int:
        """The epoch of the event with this offset, or of the next one; -1 if it is not known."""
        known = self._known
        at = bisect_right(known, offset, key=lambda each: each[1])
        return known[at - 1][0] if at else -1
