"""Links to all other brokers of the cluster, for one purpose.

Answers come in the order of the requests, so one that waits for a disk that hangs keeps those behind it waiting. What
may wait for the disk of one partition has `LINES` links, over which the partitions are spread. A link for each would
be a thousand connections where a job fills a thousand partitions: as many as one address may have."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peers import LARGEST, TIMEOUT_S, PeerLink
from krappy.cluster.streams import Address
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.image import Image

TOGETHER = 16  # requests for users on a link where another broker serves them one by one
MANY = 64  # on a link where it serves them together
LINES = 16


class PeerLinks:
    def __init__(
        self,
        image: Callable[[], Image],
        way: InterBroker,
        client_id: str,
        *,
        timeout_s: float = TIMEOUT_S,
        largest: int = LARGEST,
        together: int | None = None,
    ) -> None:
        """`largest`: bytes of an answer. `together`: as for `PeerLink`."""
        self._image, self._way = image, way
        self._client_id, self._timeout_s, self._largest = client_id, timeout_s, largest
        self._together = together
        self._links: dict[tuple[int, int | None], PeerLink] = {}

    def to_coordinator(self, broker: int, topic: str, name: str) -> PeerLink:
        """A link for the partition of this internal topic that the name belongs to."""
        found = self._image().topics.get(topic)
        return self.to(broker, None if found is None else partition_of(name, len(found.partitions)))

    def to(self, broker: int, partition: Hashable = None) -> PeerLink:
        """`partition`: for whose disk the request may wait; None: for none."""
        line = None if partition is None else hash(partition) % LINES
        if (broker, line) not in self._links:
            where = partial(self._address, broker)
            self._links[broker, line] = PeerLink(
                *(where, self._client_id, self._way),
                timeout_s=self._timeout_s,
                largest=self._largest,
                together=self._together,
            )
        return self._links[broker, line]

    def _address(self, broker: int) -> Address | None:
        found = self._image().brokers.get(broker)
        return None if found is None else found.endpoints.get(self._way.listener)
