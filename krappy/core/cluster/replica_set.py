"""The replicas' progress in a partition, and the high watermark that follows from it.

An event is committed once every replica in sync has it on its disk, and there are enough of those
(min.insync.replicas). A committed event stays committed: the high watermark never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable


class ReplicaSet:
    """The leader's view of its replicas in one epoch. Offsets are exclusive: behind the last event."""

    def __init__(self, isr: Iterable[int], min_isr: int, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self._min_isr = min_isr
        self._synced = dict.fromkeys(isr, high_watermark)  # by replica in sync: what is on its disk, at least

    def synced(self, replica: int, offset: int) -> bool:
        """Notes that this replica has everything before `offset` on its disk. Returns whether the high watermark
        rose."""
        if offset <= self._synced.get(replica, offset):
            return False
        self._synced[replica] = offset
        reached = min(self._synced.values())
        if reached <= self.high_watermark or len(self._synced) < self._min_isr:
            return False
        self.high_watermark = reached
        return True
