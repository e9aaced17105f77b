"""AddPartitionsToTxn (24): names the partitions that a producer is about to write to in its transaction (KIP-98).

All or nothing: if one partition does not exist, none is added.
"""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import is_there
from krappy.handlers.kafka.transactions import code_of, named
from krappy.ports import KafkaSessionPort
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

FENCED_SINCE = 2  # the version from which PRODUCER_FENCED is known


@serves(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, needs=needs.transactional_id(Op.WRITE) + needs.topic(Op.WRITE))
async def add_partitions_to_txn(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    topics = request["v3_and_below_topics"]
    asked = [TopicPartition(topic["name"], index) for topic in topics for index in topic["partitions"]]
    missing = {at for at in asked if not is_there(session, at, Op.WRITE)}
    code = Code.NONE
    if missing:
        code = Code.OPERATION_NOT_ATTEMPTED
    else:
        try:
            id = named(request["v3_and_below_transactional_id"])
            await session.access.transactional_id(id, Op.WRITE).add_partitions(
                id,
                request["v3_and_below_producer_id"],
                request["v3_and_below_producer_epoch"],
                asked,
            )
        except KrappyError as error:
            code = code_of(error, fenced=version >= FENCED_SINCE)

    def result(at: TopicPartition) -> dict[str, Any]:
        own = Code.UNKNOWN_TOPIC_OR_PARTITION if at in missing else code
        return {"partition_index": at.partition, "partition_error_code": own}

    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [result(TopicPartition(topic["name"], at)) for at in topic["partitions"]],
            }
            for topic in topics
        ]
    }
