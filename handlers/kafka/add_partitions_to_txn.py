"""AddPartitionsToTxn (24): where a producer is about to write in its transaction (KIP-98).

All or nothing: beside a partition that is not there the others are not attempted.
"""

from __future__ import annotations

from typing import Any

from krappy.errors import KrappyError
from krappy.handlers.kafka.transactions import code_of, named
from krappy.ports import KafkaSessionPort
from krappy.types import TopicPartition
from krappy.wire.kafka import Code

FENCED_SINCE = 2  # the version from which PRODUCER_FENCED is known


async def add_partitions_to_txn(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    topics = request["v3_and_below_topics"]
    known = session.broker.topics
    asked = [TopicPartition(topic["name"], index) for topic in topics for index in topic["partitions"]]
    missing = {at for at in asked if at.topic not in known or not 0 <= at.partition < len(known[at.topic].partitions)}
    code = Code.NONE
    if missing:
        code = Code.OPERATION_NOT_ATTEMPTED
    else:
        try:
            await session.broker.transactions.add_partitions(
                named(request["v3_and_below_transactional_id"]),
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
