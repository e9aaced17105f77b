"""DescribeLogDirs (35): what each partition takes on the disk, and how much room there is (KIP-113, KIP-827)."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort, PartitionPort

Message = dict[str, Any]


async def describe_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """All partitions when no topics are named; of those named, the ones there are."""
    broker = session.broker
    folder, total, usable = await broker.log_dir()
    chosen: dict[str, set[int] | None] = dict.fromkeys(broker.topics)
    if request["topics"] is not None:
        chosen = {}
        for asked in request["topics"]:
            chosen[asked["topic"]] = (chosen.get(asked["topic"]) or set()) | set(asked["partitions"])
    topics = []
    for name, indexes in chosen.items():
        topic = broker.topics.get(name)
        if topic is None:
            continue
        partitions = [_size(each) for each in topic.partitions if indexes is None or each.index in indexes]
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
