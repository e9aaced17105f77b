"""DescribeProducers (61): the producers of a partition, and the open transaction of each (KIP-664)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import counted
from krappy.handlers.kafka.sources import source_for
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code


@serves(ApiKey.DESCRIBE_PRODUCERS, 0, 0, needs=needs.topic(Op.READ))
async def describe_producers(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    topics = []
    async with counted(session) as rows:
        for topic in request["topics"]:
            partitions = []
            for index in topic["partition_indexes"]:
                partitions.append(_partition(session, topic["name"], index))
                await rows.add(1 + len(partitions[-1]["active_producers"]))
            topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


def _partition(session: KafkaSessionPort, name: str, index: int) -> dict[str, Any]:
    try:
        producers = source_for(session, name, index, Op.READ).producers()
    except KrappyError as error:
        return {
            "partition_index": index,
            "error_code": Code.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": error.text,
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": Code.NONE,
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.timestamp,
                "coordinator_epoch": 0 if each.open_since >= 0 else -1,
                "current_txn_start_offset": each.open_since,
            }
            for each in producers
        ],
    }
