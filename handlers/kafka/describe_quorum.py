"""DescribeQuorum (55): the keepers of the cluster's metadata (KIP-595, KIP-853): the controller, always up to date.

Krappy keeps metadata in a tree, not in a log with offsets; so all offsets are 0.
"""

from __future__ import annotations

from typing import Any

from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

Message = dict[str, Any]
METADATA_TOPIC = "__cluster_metadata"


@serves(ApiKey.DESCRIBE_QUORUM, 0, 2, needs=needs.cluster(Op.DESCRIBE))
def describe_quorum(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {
        "error_code": 0,
        "topics": [
            {
                "topic_name": topic["topic_name"],
                "partitions": [
                    _partition(session, topic["topic_name"], each["partition_index"]) for each in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ],
        "nodes": [
            {"node_id": node.node_id, "listeners": [{"name": session.listener, "host": node.host, "port": node.port}]}
            for node in session.nodes().values()
        ],
    }


def _partition(session: KafkaSessionPort, topic: str, index: int) -> Message:
    if (topic, index) != (METADATA_TOPIC, 0):
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
        return {"partition_index": index, "error_code": code, "leader_id": -1, "leader_epoch": -1, "high_watermark": -1}
    now, controller = session.broker.now_ms(), session.broker.image.controller
    leader = NOBODY if controller is None else controller
    voter = {
        "replica_id": leader,
        "replica_directory_id": UUID_ZERO,
        "log_end_offset": 0,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now,
    }
    return {
        "partition_index": 0,
        "error_code": 0,
        "leader_id": leader,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [voter],
        "observers": [],
    }
