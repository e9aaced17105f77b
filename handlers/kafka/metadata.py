"""Metadata (3): the brokers there are, the topics, and who leads their partitions: this one, all of them.

A topic that is asked for by name and does not exist is created, when both the broker (auto_create_topics) and the
client (from version 4 on) allow it: `MOST_CREATED` by one request. Others are not known yet, and clients ask again.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any

from krappy.errors import KrappyError
from krappy.handlers.kafka.operations import NOT_ASKED, ON_CLUSTER, ON_TOPIC
from krappy.handlers.kafka.sources import is_internal, topic_by_id, topic_named, topics_listed
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, Code, code_for

Message = dict[str, Any]

MOST_CREATED = 100
MANY = 250  # partitions that are described in one go


def metadata(session: KafkaSessionPort, request: Message, version: int) -> Message | Coroutine[Any, Any, Message]:
    asked = request["topics"]
    if asked is None or (version == 0 and not asked):
        return _answer(session, request, [_topic(session, topic) for topic in topics_listed(session)])
    if len(asked) > MANY:
        return _many(session, request, asked)
    if request["allow_auto_topic_creation"]:
        absent = [topic["name"] for topic in asked if _may_create(session, topic)]
        if absent:
            return _create(session, request, asked, absent)
    return _answer(session, request, [_found(session, topic, {}) for topic in asked])


async def _many(session: KafkaSessionPort, request: Message, asked: list[Message]) -> Message:
    """The same for very many topics; others have their turn meanwhile."""
    absent: list[str] = []
    if request["allow_auto_topic_creation"]:
        for number, topic in enumerate(asked):
            if _may_create(session, topic):
                absent.append(topic["name"])
            if number % MANY == 0:
                await session.pause()
    return await _create(session, request, asked, absent)


async def _create(session: KafkaSessionPort, request: Message, asked: list[Message], absent: list[str]) -> Message:
    """The answer, once those topics have been made."""
    failed: dict[str, KrappyError] = {}
    for name in absent[:MOST_CREATED]:
        if session.closed:  # who asked has left
            break
        try:
            await session.broker.topic_for_producer(name)
        except KrappyError as error:
            failed[name] = error
    found = []
    for number, topic in enumerate(asked, 1):
        found.append(_found(session, topic, failed))
        if number % MANY == 0:
            await session.pause()
    answer = _answer(session, request, found)
    return answer if isinstance(answer, dict) else await answer


def _may_create(session: KafkaSessionPort, topic: Message) -> bool:
    name = topic["name"]
    if name is None or "@" in name or session.broker.table_of(name) is not None:
        return False
    return topic_named(session, name) is None


def _found(session: KafkaSessionPort, asked: Message, failed: dict[str, KrappyError]) -> Message:
    name, uuid = asked["name"], asked["topic_id"]
    topic = topic_by_id(session, uuid) if name is None else topic_named(session, name)
    if topic is not None:
        return _topic(session, topic)
    if name is None:
        return {"error_code": Code.UNKNOWN_TOPIC_ID, "name": None, "topic_id": uuid, "partitions": []}
    error = code_for(failed[name]) if name in failed else Code.UNKNOWN_TOPIC_OR_PARTITION
    return {"error_code": error, "name": name, "topic_id": UUID_ZERO, "partitions": []}


def _topic(session: KafkaSessionPort, topic: Any) -> Message:
    """A topic with its partitions as they are; `_partitions` describes them."""
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": is_internal(topic),
        "partitions": topic.partitions,
    }


def _partitions(session: KafkaSessionPort, partitions: Iterable[Any]) -> list[Message]:
    node = session.node.node_id
    replicas = [node]
    return [
        {
            "error_code": 0,
            "partition_index": partition.index,
            "leader_id": node,
            "leader_epoch": partition.epoch,
            "replica_nodes": replicas,
            "isr_nodes": replicas,
            "offline_replicas": replicas if partition.offline else [],
        }
        for partition in partitions
    ]


def _answer(
    session: KafkaSessionPort, request: Message, topics: list[Message]
) -> Message | Coroutine[Any, Any, Message]:
    if sum(len(topic["partitions"]) for topic in topics) > MANY:
        return _long_answer(session, request, topics)
    for topic in topics:
        topic["partitions"] = _partitions(session, topic["partitions"])
    return _whole(session, request, topics)


async def _long_answer(session: KafkaSessionPort, request: Message, topics: list[Message]) -> Message:
    """The same; others have their turn meanwhile."""
    left = MANY
    for topic in topics:
        every = iter(list(topic["partitions"]))
        topic["partitions"] = described = []
        while some := _partitions(session, islice(every, left)):
            described += some
            left -= len(some)
            if not left:
                await session.pause()
                left = MANY
    return _whole(session, request, topics)


def _whole(session: KafkaSessionPort, request: Message, topics: list[Message]) -> Message:
    node = session.node
    if request["include_topic_authorized_operations"]:
        for topic in topics:
            topic["topic_authorized_operations"] = ON_TOPIC
    return {
        "brokers": [{"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}],
        "cluster_id": session.cluster_id,
        "controller_id": node.node_id,
        "topics": topics,
        "cluster_authorized_operations": ON_CLUSTER if request["include_cluster_authorized_operations"] else NOT_ASKED,
        "error_code": 0,
    }
