"""What a client has written, and read in its session: a replica that shows less may not answer it.

So two of the session guarantees hold (Terry et al., "Session Guarantees for Weakly Consistent Replicated Data", PDIS
1994): read your writes, and monotonic reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from krappy.clients.cluster import KnownCluster

if TYPE_CHECKING:
    from krappy.clients.lane import Settled  # only for types: it would import the codecs of batches


class SessionOffsets:
    """By topic and partition, the highest offset that was written or read. Threads may share it. What was noted of a
    deleted topic does not count for another one of its name."""

    def __init__(self, known: KnownCluster) -> None:
        self._known = known
        # By name: the topic's id ("" as long as that is not known), the offset by partition.
        self._topics: dict[str, tuple[str, dict[int, int]]] = {}
        self._lock = threading.Lock()

    def wrote(self, topic: str, settled: Iterable[Settled]) -> None:
        """Notes which offsets were acknowledged."""
        stored = [each for each in settled if each.error is None and each.offset >= 0]
        self.saw(topic, [(each.batch.partition, each.offset + len(each.batch.timestamps) - 1) for each in stored])

    def saw(self, topic: str, offsets: Iterable[tuple[int, int]]) -> None:
        """Notes which offsets were read, as (partition, offset)."""
        with self._lock:
            noted = self._noted(topic)
            for partition, offset in offsets:
                if offset > noted.get(partition, -1):
                    noted[partition] = offset

    def seen(self, topic: str) -> dict[int, int]:
        """By partition, the offset that an answer must include."""
        with self._lock:
            return dict(self._noted(topic))

    def _noted(self, topic: str) -> dict[int, int]:
        known = self._known.topics.get(topic)
        before, noted = self._topics.get(topic, ("", {}))
        id = before if known is None else known.id
        if before not in ("", id):
            noted = {}
        self._topics[topic] = id, noted
        return noted
