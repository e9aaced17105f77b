"""Metadata (3): the brokers, the topics, and the leaders of their partitions.

A topic that is asked for by name and does not exist is created if the broker (auto_create_topics) and the client (from
version 4 on) allow it. One request creates `MOST_CREATED` at most; the others are unknown, and the client asks again.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.operations import NOT_ASKED, ON_CLUSTER, ON_TOPIC
from krappy.handlers.kafka.partition_rows import partition_rows
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import topic_by_id, topic_named, topics_listed
from krappy.ports import KafkaSessionPort, SourceTopicPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code, code_for

Message = dict[str, Any]
Told = tuple[Message, SourceTopicPort | None]  # a row, still without partitions, and its topic

MOST_CREATED = 100
MANY = 250  # partitions that are described in one turn


@serves(ApiKey.METADATA, 0, 13, needs=needs.topic(Op.DESCRIBE, Op.CREATE))
def metadata(session: KafkaSessionPort, request: Message, version: int) -> Message | Coroutine[Any, Any, Message]:
    asked = request["topics"]
    if asked is None or (version == 0 and not asked):
        return _answer(session, request, [_topic(topic) for topic in topics_listed(session)])
    if len(asked) > MANY:
        return _many(session, request, asked)
    if request["allow_auto_topic_creation"]:
        absent = [topic["name"] for topic in asked if _may_create(session, topic)]
        if absent:
            return _create(session, request, asked, absent)
    return _answer(session, request, [_found(session, topic, {}) for topic in asked])


async def _many(session: KafkaSessionPort, request: Message, asked: list[Message]) -> Message:
    """The answer for very many topics, made in several turns."""
    absent: list[str] = []
    if request["allow_auto_topic_creation"]:
        for number, topic in enumerate(asked):
            if _may_create(session, topic):
                absent.append(topic["name"])
            if number % MANY == 0:
                await session.pause()
    return await _create(session, request, asked, absent)


async def _create(session: KafkaSessionPort, request: Message, asked: list[Message], absent: list[str]) -> Message:
    """Creates the topics of `absent`, then gives the answer."""
    failed: dict[str, KrappyError] = {}
    for name in absent[:MOST_CREATED]:
        if session.closed:  # the client has left
            break
        try:
            await session.access.topic_for_producer(name)
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
    if name is None or "@" in name or session.access.table_of(name) is not None:
        return False
    return topic_named(session, name, Op.DESCRIBE) is None


def _found(session: KafkaSessionPort, asked: Message, failed: dict[str, KrappyError]) -> Told:
    name, id = asked["name"], asked["topic_id"]
    topic = topic_by_id(session, id, Op.DESCRIBE) if name is None else topic_named(session, name, Op.DESCRIBE)
    if topic is not None:
        return _topic(topic)
    if name is None:
        return {"error_code": Code.UNKNOWN_TOPIC_ID, "name": None, "topic_id": id, "partitions": []}, None
    error = code_for(failed[name]) if name in failed else Code.UNKNOWN_TOPIC_OR_PARTITION
    return {"error_code": error, "name": name, "topic_id": UUID_ZERO, "partitions": []}, None


def _topic(topic: SourceTopicPort) -> Told:
    return {"error_code": 0, "name": topic.name, "topic_id": topic.id, "is_internal": topic.internal}, topic


def _answer(session: KafkaSessionPort, request: Message, told: list[Told]) -> Message | Coroutine[Any, Any, Message]:
    if sum(topic.count for _, topic in told if topic is not None) > MANY:
        return _long_answer(session, request, told)
    for row, topic in told:
        if topic is not None:
            row["partitions"] = partition_rows(session, topic, range(topic.count))
    return _whole(session, request, told)


async def _long_answer(session: KafkaSessionPort, request: Message, told: list[Told]) -> Message:
    """The answer, made in several turns."""
    left = MANY
    for row, topic in told:
        if topic is None:
            continue
        described: list[Message] = []
        row["partitions"] = described
        while some := range(len(described), min(topic.count, len(described) + left)):
            described += partition_rows(session, topic, some)
            left -= len(some)
            if not left:
                await session.pause()
                left = MANY
    return _whole(session, request, told)


def _whole(session: KafkaSessionPort, request: Message, told: list[Told]) -> Message:
    topics = [row for row, _ in told]
    if request["include_topic_authorized_operations"]:
        for row in topics:
            row["topic_authorized_operations"] = ON_TOPIC
    controller = session.broker.image.controller
    return {
        "brokers": [node._asdict() for node in session.nodes().values()],
        "cluster_id": session.broker.cluster_id,
        "controller_id": NOBODY if controller is None else controller,
        "topics": topics,
        "cluster_authorized_operations": ON_CLUSTER if request["include_cluster_authorized_operations"] else NOT_ASKED,
        "error_code": 0,
    }
