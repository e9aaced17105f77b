"""What Kafka's clients may name as a topic, and read from as a partition.

The one place where a name, or an id, becomes a topic. Two kinds of names stand for something else that is read like
one: those of tables, which no new topic can have, and those of Kafka's internal topics. What the door gives for them
(`Access.find_special`) has a topic's name, id, image and `led`, and its partitions satisfy `SourcePort`; so everything
that reads (Metadata, ListOffsets, Fetch, OffsetForLeaderEpoch) serves such names without knowing of them. What writes
does not ask for them.
"""

from __future__ import annotations

from typing import Any

from krappy.core.security.operations import Op
from krappy.errors import InvalidTopic, UnknownTopic
from krappy.ports import KafkaSessionPort
from krappy.types import TopicPartition
from krappy.wire.kafka import UUID_ZERO, Code


def topic_named(session: KafkaSessionPort, name: str, op: Op, *, reading: bool = True) -> Any:
    """The topic, or None."""
    found = session.access.find_topic(name, op)
    if found is None and reading:
        return session.access.find_special(name, op, session.state)
    return found


def topic_by_id(session: KafkaSessionPort, id: bytes, op: Op, *, reading: bool = True) -> Any:
    """The topic, or None. One that is read under a name of its own may have an id of its own too."""
    found = session.access.find_topic_by_id(id, op)
    if found is None and reading:
        return session.access.find_special_by_id(id, op, session.state)
    return found


def topics_listed(session: KafkaSessionPort) -> list[Any]:
    """What a client is told of that asks for all topics."""
    access = session.access
    return [*access.topics(Op.DESCRIBE).values(), *access.internal_topics(Op.DESCRIBE)]


def is_internal(topic: Any) -> bool:
    """Whether it is one of Kafka's own, which nobody may change."""
    return getattr(topic, "internal", False)


def check_not_internal(session: KafkaSessionPort, name: str, op: Op) -> None:
    """Raises InvalidTopic for what can only be read."""
    if is_internal(topic_named(session, name, op)):
        raise InvalidTopic(f"'{name}' is an internal topic: it can only be read")


def topic_of(session: KafkaSessionPort, name: str, id: bytes, by_id: bool, op: Op, *, reading: bool = True) -> Any:
    """The topic that an entry of a request means, or the Code that says why there is none."""
    if not by_id:
        return topic_named(session, name, op, reading=reading) or Code.UNKNOWN_TOPIC_OR_PARTITION
    if id == UUID_ZERO:
        return Code.UNKNOWN_TOPIC_ID
    return topic_by_id(session, id, op, reading=reading) or Code.UNKNOWN_TOPIC_ID


def is_there(session: KafkaSessionPort, at: TopicPartition, op: Op) -> bool:
    """Whether there is such a partition, whoever leads it."""
    topic = session.access.find_topic(at.topic, op)
    return topic is not None and 0 <= at.partition < topic.count


def source_for(session: KafkaSessionPort, name: str, index: int, op: Op) -> Any:
    """What is read as this partition: something that satisfies `SourcePort`. Raises UnknownTopic, UnknownPartition,
    NotLeader."""
    topic = topic_named(session, name, op)
    if topic is None:
        raise UnknownTopic(f"there is no topic '{name}'", topic=name)
    return topic.led(index)


def wrong_epoch(source: Any, epoch: int) -> Code:
    """What is wrong with the leader epoch that a client believes in (KIP-320); -1: it has none to check."""
    if epoch < 0 or epoch == source.epoch:
        return Code.NONE
    return Code.FENCED_LEADER_EPOCH if epoch < source.epoch else Code.UNKNOWN_LEADER_EPOCH
