"""Brokers, the topics that they have, the leaders of their partitions, coordinators, the controller."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.errors import KrappyError
from krappy.handlers.kafka.operations import authorized, authorized_on_cluster
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import FEW
from krappy.handlers.kafka.sources import found, topic_of, topics_listed
from krappy.ports import KafkaSessionPort, SourceTopicPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code, code_for

Told = tuple[Message, SourceTopicPort | None]  # a row, still without partitions, and its topic

MOST_CREATED = 100
UNCONTROLLED_S = 5.0  # a cluster has no controller for as long as it starts, and for a moment when another takes over
MANY = 200  # partitions that are described in one turn


@serves(ApiKey.METADATA, needs=needs.topic(Op.DESCRIBE, Op.CREATE))
def metadata(session: KafkaSessionPort, request: Message, version: int) -> Message | Coroutine[Any, Any, Message]:
    """A topic that is asked for by name and does not exist is created if the broker (auto_create_topics) and the client
    (from version 4 on) allow it. One request creates `MOST_CREATED` at most; the others are unknown, and the client
    asks again."""
    if not session.broker.image.controlled:
        return _once_controlled(session, partial(_metadata, session, request, version))
    return _metadata(session, request, version)


async def _once_controlled(
    session: KafkaSessionPort, answer: Callable[[], Message | Coroutine[Any, Any, Message]]
) -> Message:
    """The answer, once the cluster has brokers and a controller, or has had none for `UNCONTROLLED_S`: librdkafka's
    AdminClient asks no more for a minute if it is told of none."""
    await session.broker.until_controlled(UNCONTROLLED_S)
    made = answer()
    return made if isinstance(made, dict) else await made


def _metadata(session: KafkaSessionPort, request: Message, version: int) -> Message | Coroutine[Any, Any, Message]:
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
            await session.access.topic_for_producer(name, Op.DESCRIBE)
        except KrappyError as error:
            failed[name] = error
    told = []
    for number, topic in enumerate(asked, 1):
        told.append(_found(session, topic, failed))
        if number % MANY == 0:
            await session.pause()
    answer = _answer(session, request, told)
    return answer if isinstance(answer, dict) else await answer


def _may_create(session: KafkaSessionPort, topic: Message) -> bool:
    name = topic["name"]
    if _by_id(topic) or "@" in name or session.access.table_of(name) is not None:
        return False
    return found(session, name, Op.DESCRIBE) is Code.UNKNOWN_TOPIC_OR_PARTITION


def _by_id(asked: Message) -> bool:
    """Whether the topic's id counts. As in Kafka, its name does not matter then: Java's clients send an empty one."""
    return asked["name"] is None or asked["topic_id"] != UUID_ZERO


def _found(session: KafkaSessionPort, asked: Message, failed: dict[str, KrappyError]) -> Told:
    name, id = asked["name"], asked["topic_id"]
    topic = topic_of(session, name or "", id, _by_id(asked), Op.DESCRIBE)
    if not isinstance(topic, Code):
        return _topic(topic)
    if _by_id(asked):
        return {"error_code": topic, "name": None, "topic_id": id, "partitions": []}, None
    error = code_for(failed[name]) if name in failed else topic
    return {"error_code": error, "name": name, "topic_id": UUID_ZERO, "partitions": []}, None


def _topic(topic: SourceTopicPort) -> Told:
    return {"error_code": 0, "name": topic.name, "topic_id": topic.id, "is_internal": topic.internal}, topic


def _answer(session: KafkaSessionPort, request: Message, told: list[Told]) -> Message | Coroutine[Any, Any, Message]:
    if sum(topic.count for _, topic in told if topic is not None) > MANY:
        return _long_answer(session, request, told)
    for row, topic in told:
        if topic is not None:
            row["partitions"] = partition_rows(session, topic, range(topic.count))
            _add_operations(session, request, row, topic)
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
        _add_operations(session, request, row, topic)
    return _whole(session, request, told)


def _add_operations(session: KafkaSessionPort, request: Message, row: Message, topic: SourceTopicPort) -> None:
    if request["include_topic_authorized_operations"]:
        row["topic_authorized_operations"] = authorized(session, Resource.TOPIC, topic.name)


def _whole(session: KafkaSessionPort, request: Message, told: list[Told]) -> Message:
    topics = [row for row, _ in told]
    return {
        "brokers": [node._asdict() for node in session.nodes().values()],
        "cluster_id": session.broker.cluster_id,
        "controller_id": _controller(session),
        "topics": topics,
        "cluster_authorized_operations": authorized_on_cluster(
            session, request["include_cluster_authorized_operations"]
        ),
        "error_code": 0,
    }


PAGE = 2000  # partitions in one answer at most (Kafka's max.request.partition.size.limit)


@serves(ApiKey.DESCRIBE_TOPIC_PARTITIONS, needs=needs.topic(Op.DESCRIBE))
async def describe_topic_partitions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Topics a page at a time, in the order of their names (KIP-966): all if the request names none. `next_cursor` of a
    full answer says where the next request is to begin."""
    names = {topic["name"] for topic in request["topics"]} or {topic.name for topic in topics_listed(session)}
    cursor = request["cursor"]
    first, skip = ("", 0) if cursor is None else (cursor["topic_name"], max(0, cursor["partition_index"]))
    room = max(1, min(request["response_partition_limit"], PAGE))
    topics: list[Message] = []
    following = None
    for number, name in enumerate(sorted(name for name in names if name >= first), 1):
        if number % FEW == 0:  # for names without a topic that may be described: the others pause below
            await session.pause()
        topic = found(session, name, Op.DESCRIBE)
        if isinstance(topic, Code):
            if request["topics"]:
                topics.append({"error_code": topic, "name": name, "topic_id": UUID_ZERO, "partitions": []})
            continue
        if not room:
            following = {"topic_name": name, "partition_index": 0}
            break
        start = skip if name == first else 0
        chosen = range(start, min(start + room, topic.count))
        row, _ = _topic(topic)
        row["partitions"] = partition_rows(session, topic, chosen)
        row["topic_authorized_operations"] = authorized(session, Resource.TOPIC, name)
        topics.append(row)
        room -= len(chosen)
        if chosen and chosen.stop < topic.count:
            following = {"topic_name": name, "partition_index": chosen.stop}
            break
        await session.pause()
    return {"topics": topics, "next_cursor": following}


def partition_rows(session: KafkaSessionPort, topic: SourceTopicPort, indexes: Iterable[int]) -> list[Message]:
    """A topic's partitions as rows of Metadata and DescribeTopicPartitions: leader, replicas, ISR. Raises IndexError
    for an index that the image lacks."""
    broker, nodes = session.broker, session.nodes()
    partitions, there = topic.image.partitions, broker.image.brokers
    rows = []
    for index in indexes:
        partition = partitions[index]
        state = partition.state
        led = state.leader in nodes
        out = topic.is_offline(index)
        rows.append(
            {
                "error_code": Code.NONE if led else _unled(state.leader),
                "partition_index": index,
                "leader_id": state.leader if led else NOBODY,
                "leader_epoch": state.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": state.isr,
                "eligible_leader_replicas": state.elr,
                "last_known_elr": state.last_known_elr,
                "offline_replicas": [id for id in partition.replicas if id not in there or (out and id == broker.id)],
            }
        )
    return rows


def _unled(leader: int) -> Code:
    """Why the client gets no leader: there is none, or its broker has no listener of the client's name."""
    return Code.LEADER_NOT_AVAILABLE if leader == NOBODY else Code.LISTENER_NOT_FOUND


BROKERS = 1  # the endpoint type; controllers have 2 (KIP-919)


@serves(ApiKey.DESCRIBE_CLUSTER, needs=needs.cluster(Op.DESCRIBE))
def describe_cluster(
    session: KafkaSessionPort, request: Message, version: int
) -> Message | Coroutine[Any, Any, Message]:
    """The brokers and the controller (KIP-700)."""
    if not session.broker.image.controlled:
        return _once_controlled(session, partial(_described, session, request))
    return _described(session, request)


def _described(session: KafkaSessionPort, request: Message) -> Message:
    if request["endpoint_type"] != BROKERS:
        text = "this listener is a broker's, not a controller's"
        return {"error_code": Code.MISMATCHED_ENDPOINT_TYPE, "error_message": text, "controller_id": -1, "brokers": []}
    brokers = [
        {"broker_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack, "is_fenced": False}
        for node in session.nodes().values()
    ]
    return {
        "error_code": 0,
        "endpoint_type": BROKERS,
        "cluster_id": session.broker.cluster_id,
        "controller_id": _controller(session),
        "brokers": brokers,
        "cluster_authorized_operations": authorized_on_cluster(
            session, request["include_cluster_authorized_operations"]
        ),
    }


def _controller(session: KafkaSessionPort) -> int:
    """A broker that is told to the peer. If the controller is not, it is this broker: any does a controller's work."""
    nodes, controller = session.nodes(), session.broker.image.controller
    if controller is not None and controller in nodes:
        return controller
    return session.broker.id if session.broker.id in nodes else NOBODY


GROUP, TRANSACTION, SHARE = 0, 1, 2  # key types
INTERNAL = {  # Kafka's internal topics for them
    GROUP: "__consumer_offsets",
    TRANSACTION: "__transaction_state",
    SHARE: "__share_group_state",
}
_RESOURCES = {GROUP: Resource.GROUP, TRANSACTION: Resource.TRANSACTIONAL_ID}
_SEVERAL_SINCE = 4  # the version from which several keys are asked for at once (KIP-699)


@serves(
    ApiKey.FIND_COORDINATOR,
    needs=needs.group(Op.DESCRIBE) + needs.transactional_id(Op.DESCRIBE) + needs.cluster(Op.CLUSTER_ACTION),
)
async def find_coordinator(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The broker that coordinates a group or a transactional id, or keeps the state of a share group (KIP-932)."""
    kind = request["key_type"]
    if version < _SEVERAL_SINCE:
        return await _coordinator(session, request["key"], kind)
    coordinators = []
    for number, key in enumerate(request["coordinator_keys"], 1):
        coordinators.append(await _coordinator(session, key, kind))
        if number % FEW == 0:
            await session.pause()
    return {"coordinators": coordinators}


async def _coordinator(session: KafkaSessionPort, key: str, kind: int) -> Message:
    error, text = Code.INVALID_REQUEST, "groups, transactional ids and share partitions have coordinators"
    name = _group_in(key) if kind == SHARE else key
    if kind in INTERNAL and name:
        try:
            if kind == SHARE:
                session.access.check(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)
            else:
                session.access.check(_RESOURCES[kind], key, Op.DESCRIBE)
        except KrappyError as refused:
            return _nowhere(key, code_for(refused), refused.text)
        error, text = Code.COORDINATOR_NOT_AVAILABLE, "the coordinator is away, or has no listener of this name"
        try:
            node = session.nodes().get(await session.broker.coordinator(INTERNAL[kind], name))
        except KrappyError as failed:
            node, text = None, failed.text
        if node is not None:
            return {"key": key, "error_code": 0, "node_id": node.node_id, "host": node.host, "port": node.port}
    return _nowhere(key, error, text)


def _group_in(key: str) -> str:
    """The group of a share partition (GROUP:TOPIC-ID:PARTITION); "" if the key has not this form."""
    found = key.rsplit(":", 2)
    return found[0] if len(found) == 3 and found[1] and found[2].isdecimal() else ""


def _nowhere(key: str, error: Code, text: str) -> Message:
    return {"key": key, "error_code": error, "error_message": text, "node_id": -1, "host": "", "port": -1}
