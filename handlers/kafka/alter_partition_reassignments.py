"""AlterPartitionReassignments (45): there is one broker, so a partition can only stay where it is (KIP-455)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.refusals import DONE, NO, RefusedApi, refusal, replicas
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


@serves(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def alter_partition_reassignments(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Answers for each partition: a move to this broker is done at once, any other is refused. So is a cancellation,
    since no move is in progress."""
    session.access.cluster(Op.ALTER)
    responses = []
    for asked in request["topics"]:
        topic = session.access.find_topic(asked["name"], Op.DESCRIBE)
        count = 0 if topic is None else topic.count
        rows = []
        for each in asked["partitions"]:
            index = each["partition_index"]
            try:
                _check(index, count, each["replicas"], session.broker.image.brokers)
                rows.append({"partition_index": index, **DONE})
            except NO as error:
                rows.append({"partition_index": index, **refusal(error)})
        responses.append({"name": asked["name"], "partitions": rows})
        await session.pause()
    return {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "responses": responses}


def _check(index: int, count: int, assigned: Sequence[int] | None, brokers: Collection[int]) -> None:
    """`assigned`: the brokers that are to have partition `index` of `count`; None cancels a move. Raises RefusedApi."""
    if not 0 <= index < count:
        raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if assigned is None:
        raise RefusedApi(Code.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas(assigned, brokers)
