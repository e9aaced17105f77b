"""Finds the topic that a request of Kafka's clients means by a name or an id.

Beside topics there are special names that can only be read: those of tables (`TOPIC@latest`), which no new topic can
have, and those of Kafka's internal topics. `Access.find_special` gives an object for such a name: it has a topic's
name, id, image and `led`, and its partitions satisfy `SourcePort`. So the handlers that read (Metadata, ListOffsets,
Fetch, OffsetForLeaderEpoch) serve special names like topics.
"""

from __future__ import annotations

from collections.abc import Iterable

from krappy.core.security.operations import Op, Resource
from krappy.errors import AuthorizationFailed, UnknownTopic
from krappy.handlers.kafka.rows import FEW
from krappy.ports import KafkaSessionPort, LeaderPort, SourcePort, SourceTopicPort, TopicPort
from krappy.wire.kafka import UUID_ZERO, Code, code_for

READ_BY_ID = "read by id"  # in a session's state: the names of topics that were read from, by their ids
MOST_REMEMBERED = 1000  # of them


def topic_named(session: KafkaSessionPort, name: str, op: Op) -> SourceTopicPort | None:
    """The topic, or what the special name stands for; or None. Raises AuthorizationFailed."""
    access = session.access
    return access.find_topic(name, op) or access.find_special(name, op, session.state)


def topic_by_id(session: KafkaSessionPort, id: bytes, op: Op) -> SourceTopicPort | None:
    """As `topic_named`, by the 16 bytes of its id."""
    access = session.access
    return access.find_topic_by_id(id, op) or access.find_special_by_id(id, op, session.state)


def topics_listed(session: KafkaSessionPort) -> list[SourceTopicPort]:
    """All topics, for a client that asks for all: also the internal ones, but not tables."""
    access = session.access
    return [*access.topics(Op.DESCRIBE).values(), *access.internal_topics(Op.DESCRIBE)]


def topic_of(session: KafkaSessionPort, name: str, id: bytes, by_id: bool, op: Op) -> SourceTopicPort | Code:
    """The topic that an entry of a request means, by its id or by its name; or the Code that says why there is none.
    Raises InvalidTopic for an operation that nobody may do on an internal topic."""
    try:
        if not by_id:
            return topic_named(session, name, op) or Code.UNKNOWN_TOPIC_OR_PARTITION
        return (None if id == UUID_ZERO else topic_by_id(session, id, op)) or Code.UNKNOWN_TOPIC_ID
    except AuthorizationFailed as error:
        return code_for(error)


def topic_read(session: KafkaSessionPort, name: str, id: bytes, by_id: bool) -> SourceTopicPort | Code:
    """As `topic_of`, to read from it. To whoever has read from a topic by its id on this connection, and may not
    describe it any more, it is not unknown: he is told that he has no right to it, whether it exists or not. Consumers
    of librdkafka tell nobody that an id is unknown."""
    topic = topic_of(session, name, id, by_id, Op.READ)
    if by_id and session.access.sees is not None:
        names: dict[bytes, str] = session.state.setdefault(READ_BY_ID, {})
        if not isinstance(topic, Code):
            if len(names) < MOST_REMEMBERED:
                names[topic.id] = topic.name
        elif id in names and found(session, names[id], Op.READ) is Code.TOPIC_AUTHORIZATION_FAILED:
            return Code.TOPIC_AUTHORIZATION_FAILED
    return topic


def found(session: KafkaSessionPort, name: str, op: Op) -> SourceTopicPort | Code:
    """As `topic_of`, by its name."""
    return topic_of(session, name, UUID_ZERO, False, op)


def topic_to_write(session: KafkaSessionPort, name: str, id: bytes, by_id: bool, own: str = "") -> TopicPort | Code:
    """As `topic_of`, where only topics can be meant. `own`: the internal topic that a broker may mean."""
    access = session.access
    try:
        if own:
            topic = access.followed_topic(name, id if by_id else None, Op.CLUSTER_ACTION)
            if topic is not None and topic.name == own:
                return topic
        topic = access.find_topic_by_id(id, Op.WRITE) if by_id else access.find_topic(name, Op.WRITE)
    except AuthorizationFailed as error:
        return code_for(error)
    return topic or (Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION)


async def denied_topics(session: KafkaSessionPort, names: Iterable[str], op: Op) -> set[str]:
    """The names of these topics on which the operation is not allowed. Found in several turns."""
    denied: set[str] = set()
    for number, name in enumerate(names, 1):
        if session.access.denies(Resource.TOPIC, name, op):
            denied.add(name)
        if number % FEW == 0:
            await session.pause()
    return denied


def source_for(session: KafkaSessionPort, name: str, index: int, op: Op) -> SourcePort:
    """The partition to read from. Raises UnknownTopic, UnknownPartition, NotLeader."""
    topic = topic_named(session, name, op)
    if topic is None:
        raise UnknownTopic(f"there is no topic '{name}'", topic=name)
    return topic.led(index)


def wrong_epoch(source: SourcePort | LeaderPort, epoch: int) -> Code:
    """The Code for a client's leader epoch (KIP-320), NONE when it is right. The epoch -1 is not checked."""
    if epoch < 0 or epoch == source.epoch:
        return Code.NONE
    return Code.FENCED_LEADER_EPOCH if epoch < source.epoch else Code.UNKNOWN_LEADER_EPOCH
