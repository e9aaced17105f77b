"""DescribeLogDirs (35): the size of each partition on disk, and the disk's total and free bytes (KIP-113, KIP-827)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort, PartitionPort
from krappy.wire.kafka import ApiKey

Message = dict[str, Any]


@serves(ApiKey.DESCRIBE_LOG_DIRS, 1, 4, needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """All partitions if the request names no topics; otherwise those of the named ones that exist."""
    there = session.access.topics(Op.DESCRIBE)
    folder, total, usable = await session.access.cluster(Op.DESCRIBE).log_dir()
    chosen: dict[str, set[int] | None] = dict.fromkeys(there)
    if request["topics"] is not None:
        chosen = {}
        for asked in request["topics"]:
            chosen[asked["topic"]] = (chosen.get(asked["topic"]) or set()) | set(asked["partitions"])
    topics = []
    for name, indexes in chosen.items():
        topic = there.get(name)
        if topic is None:
            continue
        partitions = [_size(each) for each in topic.local.values() if indexes is None or each.index in indexes]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
        await session.pause()
    result = {"error_code": 0, "log_dir": folder, "topics": topics, "total_bytes": total, "usable_bytes": usable}
    return {"throttle_time_ms": 0, "error_code": 0, "results": [result]}


def _size(partition: PartitionPort) -> Message:
    return {
        "partition_index": partition.index,
        "partition_size": partition.size,
        "offset_lag": 0,
        "is_future_key": False,
    }
