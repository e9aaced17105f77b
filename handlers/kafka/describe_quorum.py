"""DescribeQuorum (55): who keeps the cluster's metadata (KIP-595, KIP-853): this broker, alone, and always up to date.

It keeps them in a database rather than in a log with offsets, so these are shown as 0.
"""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, Code

Message = dict[str, Any]
METADATA_TOPIC = "__cluster_metadata"


def describe_quorum(session: KafkaSessionPort, request: Message, version: int) -> Message:
    node = session.node
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
            {"node_id": node.node_id, "listeners": [{"name": "PLAINTEXT", "host": node.host, "port": node.port}]}
        ],
    }


def _partition(session: KafkaSessionPort, topic: str, index: int) -> Message:
    if (topic, index) != (METADATA_TOPIC, 0):
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
        return {"partition_index": index, "error_code": code, "leader_id": -1, "leader_epoch": -1, "high_watermark": -1}
    now = session.broker.now_ms()
    voter = {
        "replica_id": session.node.node_id,
        "replica_directory_id": UUID_ZERO,
        "log_end_offset": 0,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now,
    }
    return {
        "partition_index": 0,
        "error_code": 0,
        "leader_id": session.node.node_id,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [voter],
        "observers": [],
    }
