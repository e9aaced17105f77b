"""AlterReplicaLogDirs (34): replicas may stay where they are, in the only folder (KIP-113)."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

Message = dict[str, Any]


async def alter_replica_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The folder that DescribeLogDirs names is where each partition is already; there is no other."""
    folder, _, _ = await session.broker.log_dir()
    results = []
    for place in request["dirs"]:
        for asked in place["topics"]:
            topic = session.broker.topics.get(asked["name"])
            count = 0 if topic is None else len(topic.partitions)
            rows = []
            for index in asked["partitions"]:
                if place["path"] != folder:
                    code = Code.LOG_DIR_NOT_FOUND
                else:
                    code = Code.NONE if 0 <= index < count else Code.UNKNOWN_TOPIC_OR_PARTITION
                rows.append({"partition_index": index, "error_code": code})
            results.append({"topic_name": asked["name"], "partitions": rows})
            await session.pause()
    return {"throttle_time_ms": 0, "results": results}
