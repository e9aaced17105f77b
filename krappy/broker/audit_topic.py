"""The topic that the audit log is written to, if it is one (`audit_log = "topic:__krappy_audit"`).

It is made when it is first needed, with one partition, and only brokers write to it; who may read it, ACLs say. It is
bounded, as any log that others can make grow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from krappy.broker.runtime import Runtime
from krappy.broker.topics.topic import Topic
from krappy.core.cluster.state import NOBODY
from krappy.errors import NotLeader
from krappy.ports.cluster import LogPeersPort
from krappy.records import batch as batches
from krappy.types import TopicPartition

SETTINGS = {"retention.ms": "31536000000", "retention.bytes": str(1 << 30), "segment.bytes": str(64 << 20)}


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
        await self._runtime.audit.run(self.write)

    async def write(self, lines: Sequence[str]) -> None:
        """Raises KrappyError."""
        name = self._runtime.config.audit_topic
        if name not in self._runtime.topics:
            await self._make_topic(name, 1, SETTINGS, if_absent=True, alike=True, own=True)
        topic = self._runtime.topics.find(name)
        values: list[Any] = [line.encode() for line in lines]
        data = batches.encode([None] * len(values), values, timestamps=[self._runtime.now_ms()] * len(values))
        try:
            partition = topic.led(0)
        except NotLeader as error:
            leader = error.details.get("leader", NOBODY)
            if self._peers is None or leader == NOBODY:
                raise
            await self._peers.append_audit(leader, TopicPartition(name, 0), topic.id, data)
            return
        await partition.publish(data).wait()
