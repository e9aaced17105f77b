"""ElectLeaders (43): there is one broker, which leads every partition already (KIP-183, KIP-460)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


@serves(ApiKey.ELECT_LEADERS, 0, 2, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def elect_leaders(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Answers ELECTION_NOT_NEEDED for each partition named; if the request means all, the answer is empty."""
    session.access.cluster(Op.ALTER)
    results = []
    for asked in request["topic_partitions"] or ():
        topic = session.access.find_topic(asked["topic"], Op.DESCRIBE)
        count = 0 if topic is None else topic.count
        rows = [_result(index, 0 <= index < count) for index in asked["partitions"]]
        results.append({"topic": asked["topic"], "partition_result": rows})
        await session.pause()
    return {"throttle_time_ms": 0, "error_code": 0, "replica_election_results": results}


def _result(index: int, known: bool) -> Message:
    if known:
        code, text = Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    else:
        code, text = Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    return {"partition_id": index, "error_code": code, "error_message": text}
