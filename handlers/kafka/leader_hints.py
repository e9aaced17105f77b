"""Tells a client who leads a partition, in an answer that refuses it because this broker does not (KIP-951).

The client then goes to the leader at once, without asking for Metadata. A hint is what this broker's image has. It may
be older than what the client knows; the leader epoch tells.
"""

from __future__ import annotations

from krappy.core.cluster.image import TopicImage
from krappy.handlers.kafka.registry import Message
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

HINTED = {Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH}


class LeaderHints:
    """The hints of one answer; none if its version `has` no place for them."""

    def __init__(self, session: KafkaSessionPort, has: bool = True) -> None:
        self._session, self._has = session, has
        self._leaders: set[int] = set()

    def add(self, row: Message, topic: TopicImage, index: int) -> None:
        """Puts the leader into a partition's row of Produce or Fetch, if the row's error is one that a leader would not
        have, and the client can reach the leader."""
        if not self._has or row["error_code"] not in HINTED or not 0 <= index < len(topic.partitions):
            return
        state = topic.partitions[index].state
        if state.leader in self._session.nodes():
            row["current_leader"] = {"leader_id": state.leader, "leader_epoch": state.leader_epoch}
            self._leaders.add(state.leader)

    def nodes(self) -> list[Message]:
        """The leaders that were named, for `node_endpoints` of the answer."""
        found = self._session.nodes()
        return [found[id]._asdict() for id in sorted(self._leaders) if id in found]
