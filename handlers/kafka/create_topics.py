"""CreateTopics (19). The checks, their order and their codes are those of Kafka's ReplicationControlManager.

There are no creation policies. One request creates at most `MAX_PARTITIONS` partitions, as in Kafka.
"""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.config_entries import created_entries
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, RefusedApi, more_than_once, refusal, replicas
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import topic_named
from krappy.ports import KafkaSessionPort
from krappy.settings.topic import TopicConfig, check_topic_name, normalise
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

Message = dict[str, Any]
MAX_PARTITIONS = 10_000  # of one request (QuorumController.MAX_RECORDS_PER_USER_OP)
DEFAULT = -1


@serves(ApiKey.CREATE_TOPICS, 2, 7, needs=needs.topic(Op.CREATE) + needs.cluster(Op.CREATE))
async def create_topics(session: KafkaSessionPort, request: Message, version: int) -> Message:
    broker = session.broker
    timeout = request["timeout_ms"]
    deadline = broker.clock.steady_ms() + timeout if timeout > 0 else None  # librdkafka sends 0
    topics = request["topics"]
    twice = more_than_once(topic["name"] for topic in topics)
    asked = {topic["name"]: topic for topic in topics}
    too_many = sum(_count(session, topic) for topic in asked.values()) > MAX_PARTITIONS
    answers = []
    for name, topic in asked.items():
        try:
            if name in twice:
                raise RefusedApi(Code.INVALID_REQUEST, f"the request names the topic '{name:.{SHOWN}}' twice")
            if too_many:
                raise RefusedApi(Code.POLICY_VIOLATION, f"more than {MAX_PARTITIONS} partitions in one request")
            if deadline is not None and broker.clock.steady_ms() >= deadline:
                raise RefusedApi(Code.REQUEST_TIMED_OUT, "the time allowed was over before this topic's turn came")
            answers.append(await _create(session, topic, validate_only=request["validate_only"]))
        except NO as error:
            answers.append({"name": name, "topic_id": UUID_ZERO, "configs": [], **refusal(error)})
        await session.pause()
    return {"throttle_time_ms": 0, "topics": answers}


async def _create(session: KafkaSessionPort, topic: Message, *, validate_only: bool) -> Message:
    cluster, name = session.access.cluster(Op.CREATE), topic["name"]
    check_topic_name(name)
    if topic_named(session, name, Op.CREATE) is not None:
        raise RefusedApi(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    cluster.names.check(name)
    partitions = _partitions(session, topic)
    if more_than_once(config["name"] for config in topic["configs"]):
        raise RefusedApi(Code.INVALID_CONFIG, "a setting is given twice")
    config = normalise({config["name"]: config["value"] for config in topic["configs"]})
    TopicConfig.parse({**cluster.dynamic.topic_defaults, **config})
    id = UUID_ZERO
    if not validate_only:
        made, _ = await session.access.create_topic(name, partitions, config)
        id = made.id
    described = {
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": created_entries(config, cluster.dynamic.topic_layers()),
    }
    return {"name": name, "topic_id": id, **DONE, **described}


def _partitions(session: KafkaSessionPort, topic: Message) -> int:
    """How many partitions the topic gets. Raises RefusedApi for a wrong count, replication factor or assignment."""
    count, factor, assignments = topic["num_partitions"], topic["replication_factor"], topic["assignments"]
    if assignments:
        if factor != DEFAULT or count != DEFAULT:
            what = "replication factor" if factor != DEFAULT else "number of partitions"
            raise RefusedApi(Code.INVALID_REQUEST, f"with a manual assignment the {what} has to be -1")
        indexes = [each["partition_index"] for each in assignments]
        if sorted(indexes) != list(range(len(indexes))):
            text = "the partitions of a manual assignment have to be numbered 0, 1, 2 and so on, each once"
            raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, text)
        for each in assignments:
            replicas(each["broker_ids"], session.broker.image.brokers)
        return len(indexes)
    if factor != DEFAULT and factor <= 0:
        raise RefusedApi(
            Code.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 for the default."
        )
    if count != DEFAULT and count <= 0:
        raise RefusedApi(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0, or -1 for the default.")
    if factor > 1:
        there = len(session.broker.image.brokers)
        text = f"The target replication factor of {factor} cannot be reached because only {there} broker is registered."
        raise RefusedApi(Code.INVALID_REPLICATION_FACTOR, text)
    return _count(session, topic)


def _count(session: KafkaSessionPort, topic: Message) -> int:
    if topic["assignments"]:
        return len(topic["assignments"])
    count: int = topic["num_partitions"]
    return session.broker.config.default_partitions if count == DEFAULT else max(0, count)
