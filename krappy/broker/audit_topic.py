"""The topic that the audit log is written to, if it goes to a topic (`audit_log = "topic:__krappy_audit"`).

It is made when the broker starts, since a broker that stops makes no topics. Only brokers write to it. ACLs say who may
read it. It has two partitions, the second one for failures to log in. Each is bounded, like every log that others can
make grow, so such failures take no room from other lines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import trio

from krappy.broker.audit import AGAIN_S
from krappy.broker.runtime import Runtime
from krappy.broker.topics.topic import Topic
from krappy.core.cluster.state import NOBODY
from krappy.errors import KrappyError, NotLeader
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
        """`peers`: reaches the broker that leads the topic; None: this broker is alone."""
        self._runtime = runtime
        self._make_topic = make_topic
        self._alter_topic = alter_topic
        self._peers = peers
        self._name = runtime.config.audit_topic  # empty: it goes elsewhere

    async def run(self) -> None:
        """Writes the audit log, wherever it goes. Until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._name:
                nursery.start_soon(self._make)
            await self._runtime.audit.run(self.write)

    async def _make(self) -> None:
        """Makes the topic, as soon as that is possible."""
        while True:
            with suppress(KrappyError):  # there are too few brokers yet
                await self._topic()
                return
            await trio.sleep(AGAIN_S)

    async def _topic(self) -> Topic:
        """Raises KrappyError."""
        if self._name not in self._runtime.topics:
            await self._make_topic(self._name, PARTITIONS, SETTINGS, if_absent=True, alike=True, own=True)
        return self._runtime.topics.find(self._name)

    async def finish(self) -> None:
        """Writes what waits, before the broker closes its topics."""
        if self._runtime.opened and self._name in self._runtime.topics:
            await self._runtime.audit.finish(self.write)

    async def write(self, lines: Sequence[str], place: int) -> None:
        """Raises KrappyError."""
        topic = await self._topic()
        if place >= topic.count:  # an older version made it, or somebody else
            await self._alter_topic(topic.name, None, PARTITIONS)
        values: list[Any] = [line.encode() for line in lines]
        data = batches.encode([None] * len(values), values, timestamps=[self._runtime.now_ms()] * len(values))
        try:
            partition = topic.led(place)
        except NotLeader as error:
            leader = error.details.get("leader", NOBODY)
            if self._peers is None or leader == NOBODY:
                raise
            await self._peers.append_audit(leader, TopicPartition(topic.name, place), topic.id, data)
            return
        await partition.publish(data).wait()
