"""The topic that the audit log is written to, if it is one (`audit_log = "topic:__krappy_audit"`).

It is made when it is first needed, and only brokers write to it; who may read it, ACLs say. It has two partitions, the
second for failures to log in: each is bounded, as any log that others can make grow, and so these take no other lines'
room.
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

PARTITIONS = 2
SETTINGS = {"retention.ms": "31536000000", "retention.bytes": str(1 << 30), "segment.bytes": str(64 << 20)}


class AuditTopic:
    def __init__(
        self,
        runtime: Runtime,
        make_topic: Callable[..., Awaitable[tuple[Topic, bool]]],
        alter_topic: Callable[..., Awaitable[None]],
        peers: LogPeersPort | None,
    ) -> None:
        """`peers`: to the broker that leads it; None: this one is alone."""
        self._runtime = runtime
        self._make_topic = make_topic
        self._alter_topic = alter_topic
        self._peers = peers

    async def run(self) -> None:
        """Writes the audit log, wherever it goes. Until cancelled."""
        await self._runtime.audit.run(self.write)

    async def finish(self) -> None:
        """Writes what waits, before the broker closes its topics."""
        if self._runtime.opened and self._runtime.config.audit_topic in self._runtime.topics:
            await self._runtime.audit.finish(self.write)

    async def write(self, lines: Sequence[str], place: int) -> None:
        """Raises KrappyError."""
        name = self._runtime.config.audit_topic
        if name not in self._runtime.topics:
            await self._make_topic(name, PARTITIONS, SETTINGS, if_absent=True, alike=True, own=True)
        topic = self._runtime.topics.find(name)
        if place >= topic.count:  # it was made by a version before this, or by somebody else
            await self._alter_topic(name, None, PARTITIONS)
        values: list[Any] = [line.encode() for line in lines]
        data = batches.encode([None] * len(values), values, timestamps=[self._runtime.now_ms()] * len(values))
        try:
            partition = topic.led(place)
        except NotLeader as error:
            leader = error.details.get("leader", NOBODY)
            if self._peers is None or leader == NOBODY:
                raise
            await self._peers.append_audit(leader, TopicPartition(name, place), topic.id, data)
            return
        await partition.publish(data).wait()
