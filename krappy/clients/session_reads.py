"""Reads that any replica in sync may answer, and what they must not lack.

A client remembers which offsets it has written, and read in its session. A replica that shows less does not answer. So
two of the session guarantees hold (Terry et al., "Session Guarantees for Weakly Consistent Replicated Data", PDIS
1994): read your writes, and monotonic reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from krappy.clients.lane import Settled
from krappy.clients.link import Link
from krappy.errors import ConnectionLost, KrappyError, NotLeader, RequestTimeout
from krappy.wire.messages import Answer, Request

if TYPE_CHECKING:
    from krappy.clients.router import Router

A = TypeVar("A", bound=Answer)
PATIENCE = 1.0  # seconds that a replica has for its answer; after that the leader is asked


class SessionOffsets:
    """By topic and partition, the highest offset that was written or read. Threads may share it."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[str, dict[int, int]]] = {}  # by name: the topic's id, offset by partition
        self._lock = threading.Lock()

    def note(self, topic: str, id: str, offsets: Iterable[tuple[int, int]]) -> None:
        """`id`: of the topic. What was noted of another topic of that name is forgotten. `offsets`: (partition, offset)
        of events that were written or read."""
        with self._lock:
            of, known = self._topics.get(topic, ("", {}))
            if of != id:
                known = {}
                self._topics[topic] = id, known
            for partition, offset in offsets:
                if offset > known.get(partition, -1):
                    known[partition] = offset

    def of(self, topic: str, id: str) -> Mapping[int, int]:
        """By partition, the offset that an answer must include."""
        with self._lock:
            of, known = self._topics.get(topic, ("", {}))
            return dict(known) if of == id else {}


class SessionReads:
    """The replicas that a client's reads may go to. While the cluster has one broker there are none."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._offsets = SessionOffsets()

    def wrote(self, topic: str, settled: Iterable[Settled]) -> None:
        """Notes which offsets were acknowledged."""
        if self._router.several:
            stored = [each for each in settled if each.error is None and each.offset >= 0]
            self.saw(topic, [(each.batch.partition, each.offset + len(each.batch.timestamps) - 1) for each in stored])

    def saw(self, topic: str, offsets: Iterable[tuple[int, int]]) -> None:
        """Notes which offsets were read, as (partition, offset)."""
        known = self._router.known.topics.get(topic)
        if known is not None:
            self._offsets.note(topic, known.id, offsets)

    def seen(self, topic: str) -> dict[int, int]:
        """By partition, the offset that an answer must include."""
        known = self._router.known.topics.get(topic)
        return {} if known is None else dict(self._offsets.of(topic, known.id))

    def brokers(self, topic: str, partitions: Iterable[int]) -> list[tuple[Link, list[int]]] | None:
        """Links to brokers that have replicas in sync, and which of these partitions each is to be asked for. It is
        chance which of those that are connected; begins to connect to the others. None: a partition has none."""
        router, left = self._router, set(partitions)
        having = router.known.in_sync(topic, left)
        links = {each: link for each in having if (link := router.broker_now(each)) is not None}
        found: list[tuple[Link, list[int]]] = []
        while left:
            some = [each for each in links if left.intersection(having[each])]
            if not some:
                return None
            chosen = router.choice(some)
            found.append((links[chosen], sorted(left.intersection(having[chosen]))))
            left.difference_update(having[chosen])
        return found

    async def ask(
        self, topic: str, partitions: Iterable[int], request: Callable[[list[int]], Request], answer: type[A]
    ) -> list[tuple[list[int], A]] | None:
        """(partitions, the answer about them) of some replicas. None: not all answer, so the leaders are to be asked.
        Raises why none can."""
        router = self._router
        deadline = router.runtime.now() + router.timeout
        await router.topic(topic, deadline)
        replicas = self.brokers(topic, partitions)
        if replicas is None:
            return None
        asked = [(link, request(some)) for link, some in replicas]
        answers = await router.ask_each(asked, answer, min(deadline, router.runtime.now() + PATIENCE))
        found = [(some, got) for (_, some), got in zip(replicas, answers, strict=True) if isinstance(got, answer)]
        for got in answers:
            if isinstance(got, KrappyError) and not isinstance(got, NotLeader | ConnectionLost | RequestTimeout):
                raise got
        if len(found) == len(replicas):
            return found
        await router.refresh([topic], deadline)  # some may not be in sync any more
        return None
