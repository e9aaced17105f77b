"""DescribeTopicPartitions (75): topics a page at a time, in the order of their names (KIP-966)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.operations import ON_TOPIC
from krappy.handlers.kafka.partition_rows import partition_rows
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import topic_named, topics_listed
from krappy.ports import KafkaSessionPort, SourceTopicPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

Message = dict[str, Any]
PAGE = 2000  # partitions in one answer at most (Kafka's max.request.partition.size.limit)


@serves(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, needs=needs.topic(Op.DESCRIBE))
async def describe_topic_partitions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """All topics if the request names none. `next_cursor` of a full answer says where the next request is to begin."""
    names = {topic["name"] for topic in request["topics"]} or {topic.name for topic in topics_listed(session)}
    cursor = request["cursor"]
    first, skip = ("", 0) if cursor is None else (cursor["topic_name"], max(0, cursor["partition_index"]))
    room = max(1, min(request["response_partition_limit"], PAGE))
    topics: list[Message] = []
    following = None
    for name in sorted(name for name in names if name >= first):
        topic = topic_named(session, name, Op.DESCRIBE)
        if topic is None:
            if request["topics"]:
                topics.append(_unknown(name))
            continue
        if not room:
            following = {"topic_name": name, "partition_index": 0}
            break
        start = skip if name == first else 0
        chosen = range(start, min(start + room, topic.count))
        topics.append(_described(session, topic, chosen))
        room -= len(chosen)
        if chosen and chosen.stop < topic.count:
            following = {"topic_name": name, "partition_index": chosen.stop}
            break
        await session.pause()
    return {"throttle_time_ms": 0, "topics": topics, "next_cursor": following}


def _described(session: KafkaSessionPort, topic: SourceTopicPort, indexes: range) -> Message:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": partition_rows(session, topic, indexes),
        "topic_authorized_operations": ON_TOPIC,
    }


def _unknown(name: str) -> Message:
    return {"error_code": Code.UNKNOWN_TOPIC_OR_PARTITION, "name": name, "topic_id": UUID_ZERO, "partitions": []}
