"""DeleteRecords (21): moves the log start of partitions up (KIP-107)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import topic_named
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code, code_for

Message = dict[str, Any]
UNKNOWN = -1  # the low watermark of a partition that was not changed


@serves(ApiKey.DELETE_RECORDS, 0, 2, needs=needs.topic(Op.DELETE))
async def delete_records(session: KafkaSessionPort, request: Message, version: int) -> Message:
    topics = []
    for asked in request["topics"]:
        topic = session.access.find_topic(asked["name"], Op.DELETE)
        partitions = []
        for partition in asked["partitions"]:
            index, start, code = partition["partition_index"], UNKNOWN, Code.NONE
            if topic is None and (named := topic_named(session, asked["name"], Op.DELETE)) and named.internal:
                code = Code.INVALID_TOPIC_EXCEPTION
            elif topic is None:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                try:
                    start = await topic.led(index).delete_records(partition["offset"])
                except KrappyError as error:
                    code = code_for(error)
            partitions.append({"partition_index": index, "low_watermark": start, "error_code": code})
            await session.pause()
        topics.append({"name": asked["name"], "partitions": partitions})
    return {"throttle_time_ms": 0, "topics": topics}
