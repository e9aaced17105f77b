"""A topic's partitions as rows of Metadata and DescribeTopicPartitions: leader, replicas, ISR."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from krappy.core.cluster.state import NOBODY
from krappy.ports import KafkaSessionPort, SourceTopicPort
from krappy.wire.kafka import Code


def partition_rows(session: KafkaSessionPort, topic: SourceTopicPort, indexes: Iterable[int]) -> list[dict[str, Any]]:
    """The rows of `indexes`. Raises IndexError for an index that the
    image lacks."""
    broker, nodes = session.broker, session.nodes()
    partitions, there = topic.image.partitions, broker.image.brokers
    rows = []
    for index in indexes:
        partition = partitions[index]
        state = partition.state
        led = state.leader in nodes
        out = topic.is_offline(index)
        rows.append(
            {
                "error_code": Code.NONE if led else _unled(state.leader),
                "partition_index": index,
                "leader_id": state.leader if led else NOBODY,
                "leader_epoch": state.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": state.isr,
                "eligible_leader_replicas": state.elr,
                "last_known_elr": state.last_known_elr,
                "offline_replicas": [id for id in partition.replicas if id not in there or (out and id == broker.id)],
            }
        )
    return rows


def _unled(leader: int) -> Code:
    """Why the client gets no leader: there is none, or its broker has no listener of the client's name."""
    return Code.LEADER_NOT_AVAILABLE if leader == NOBODY else Code.LISTENER_NOT_FOUND
