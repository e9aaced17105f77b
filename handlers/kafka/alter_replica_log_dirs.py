"""AlterReplicaLogDirs (34): there is one folder, so a replica can only stay where it is (KIP-113)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


@serves(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def alter_replica_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """A move to the folder that DescribeLogDirs names succeeds: the partition is there. Others: LOG_DIR_NOT_FOUND."""
    folder, _, _ = await session.access.cluster(Op.ALTER).log_dir()
    results = []
    for place in request["dirs"]:
        for asked in place["topics"]:
            topic = session.access.find_topic(asked["name"], Op.DESCRIBE)
            count = 0 if topic is None else topic.count
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
