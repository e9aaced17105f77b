"""The topic that the audit log is written to, if it is one (`audit_log = "topic:__krappy_audit"`).

It is made when it is first needed, and only the broker writes to it; who may read it, ACLs say. It is bounded, as any
log that others can make grow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from krappy.broker.runtime import Runtime
from krappy.broker.topics.topic import Topic
from krappy.core.cluster.state import NOBODY
from krappy.errors import NotLeader
from krappy.ports.cluster import LogPeersPort
from krappy.records import batch as batches
from krappy.types import TopicPartition

SETTINGS = {"retention.ms": "31536000000", "retention.bytes": str(1 << 30), "segment.bytes": str(64 << 20)}
BATCH = 256 << 10  # bytes of lines of a batch


class AuditTopic:
    def __init__(
        self,
        runtime: Runtime,
        make_topic: Callable[..., Awaitable[tuple[Topic, bool]]],
        peers: LogPeersPort | None,
    ) -> None:
        """`peers`: to the broker that leads it; None: this one is alone."""
        self._runtime = runtime
        self._make_topic = make_topic
        self._peers = peers

    async def run(self) -> None:
        """Writes the audit log, wherever it goes. Until cancelled."""
        found = self._runtime.topics.get(self._runtime.audit.topic)
        if found is not None:
            found.internal = True
        await self._runtime.audit.run(self.write)

    async def write(self, lines: Sequence[str]) -> None:
        """Raises KrappyError."""
        name = self._runtime.audit.topic
        if name not in self._runtime.topics:
            await self._make_topic(name, 1, SETTINGS, if_absent=True, alike=True)
        topic = self._runtime.topics.find(name)
        topic.internal = True
        for some in _parts(lines):
            values: list[Any] = [line.encode() for line in some]
            data = batches.encode([None] * len(values), values, timestamps=[self._runtime.now_ms()] * len(values))
            await self._publish(topic, data)

    async def _publish(self, topic: Topic, data: bytes) -> None:
        try:
            partition = topic.led(0)
        except NotLeader as error:
            leader = error.details.get("leader", NOBODY)
            if self._peers is None or leader == NOBODY:
                raise
            await self._peers.append(leader, TopicPartition(topic.name, 0), topic.id, data)
            return
        await partition.publish(data).wait()


def _parts(lines: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= BATCH:
            yield part
            part, size = [], 0
    if part:
        yield part
