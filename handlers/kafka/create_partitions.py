"""CreatePartitions (37). The checks and codes are those of Kafka's ReplicationControlManager."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.create_topics import MAX_PARTITIONS
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, RefusedApi, more_than_once, refusal, replicas
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import check_not_internal
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


@serves(ApiKey.CREATE_PARTITIONS, 0, 3, needs=needs.topic(Op.ALTER))
async def create_partitions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    topics = request["topics"]
    twice = more_than_once(topic["name"] for topic in topics)
    results = []
    for name, topic in {topic["name"]: topic for topic in topics}.items():
        try:
            if name in twice:
                raise RefusedApi(Code.INVALID_REQUEST, f"the request names the topic '{name:.{SHOWN}}' twice")
            _check(session, topic)
            if not request["validate_only"]:
                await session.access.alter_topic(name, None, topic["count"])
            results.append({"name": name, **DONE})
        except NO as error:
            results.append({"name": name, **refusal(error)})
        await session.pause()
    return {"throttle_time_ms": 0, "results": results}


def _check(session: KafkaSessionPort, topic: Message) -> None:
    check_not_internal(session, topic["name"], Op.ALTER)
    found = session.access.find_topic(topic["name"], Op.ALTER)
    if found is None:
        raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{topic['name']:.{SHOWN}}'")
    count, now, assignments = topic["count"], found.count, topic["assignments"]
    if count == now:
        raise RefusedApi(Code.INVALID_PARTITIONS, f"Topic already has {now} partition(s).")
    if count < now:
        text = f"The topic {found.name} currently has {now} partition(s); {count} would not be an increase."
        raise RefusedApi(Code.INVALID_PARTITIONS, text)
    more = count - now
    if more > MAX_PARTITIONS:
        raise RefusedApi(Code.POLICY_VIOLATION, f"more than {MAX_PARTITIONS} partitions in one request")
    if assignments is not None:
        if len(assignments) != more:
            text = f"{more} partition(s) are to be added, but {len(assignments)} assignment(s) were specified."
            raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, text)
        for each in assignments:
            replicas(each["broker_ids"], session.broker.image.brokers)
