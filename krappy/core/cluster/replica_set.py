"""How far the replicas of a partition have got, and so what of it is committed: the high watermark.

An event is committed once every replica in sync has it on its disk, and there are enough of those
(min.insync.replicas). What is committed stays so: the high watermark never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable


class ReplicaSet:
    """As the leader of one epoch keeps it. Offsets are those behind the last event."""

    def __init__(self, isr: Iterable[int], min_isr: int, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self._min_isr = min_isr
        self._synced = dict.fromkeys(isr, high_watermark)  # by replica in sync: what it has on its disk, at least

    def synced(self, replica: int, offset: int) -> bool:
        """This replica has everything before `offset` on its disk. Whether the high watermark went up."""
        if offset <= self._synced.get(replica, offset):
            return False
        self._synced[replica] = offset
        reached = min(self._synced.values())
        if reached <= self.high_watermark or len(self._synced) < self._min_isr:
            return False
        self.high_watermark = reached
        return True
