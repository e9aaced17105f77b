"""What Kafka's clients may name as a topic, and read from as a partition.

The one place where a name, or an id, becomes a topic. Two kinds of names stand for something else that is read like
one: those of tables, which no new topic can have, and those of Kafka's internal topics. `_special` and
`_special_by_id` say for what, for this session. What they give has a topic's name, uuid and partitions, and the
partitions satisfy `SourcePort`; so everything that reads (Metadata, ListOffsets, Fetch, OffsetForLeaderEpoch) serves
such names without knowing of them. What writes asks with `reading=False`, and does not find them.
"""

from __future__ import annotations

from typing import Any

from krappy.errors import InvalidTopic, UnknownPartition, UnknownTopic
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, Code


def topic_named(session: KafkaSessionPort, name: str, *, reading: bool = True) -> Any:
    """The topic, or None."""
    found = session.broker.topics.get(name)
    if found is None and reading:
        return _special(session, name)
    return found


def topic_by_id(session: KafkaSessionPort, uuid: bytes, *, reading: bool = True) -> Any:
    """The topic, or None. One that is read under a name of its own may have an id of its own too."""
    found = session.broker.topics_by_id.get(uuid)
    if found is None and reading:
        return _special_by_id(session, uuid)
    return found


def _special(session: KafkaSessionPort, name: str) -> Any:
    """What is read under this name, or None: `TOPIC@latest` is the topic's table (`krappy/core/latest.py`)."""
    return session.broker.table_topic(name, session.state) or session.broker.internal.by_name.get(name)


def _special_by_id(session: KafkaSessionPort, uuid: bytes) -> Any:
    """The same, by the id that Metadata gave for it."""
    return session.broker.internal.by_id.get(uuid) or session.broker.table_topic_by_id(uuid, session.state)


def topics_listed(session: KafkaSessionPort) -> list[Any]:
    """What a client is told of that asks for all topics."""
    broker = session.broker
    return [*broker.topics.values(), *(topic for topic in broker.internal.listed() if topic.name not in broker.topics)]


def is_internal(topic: Any) -> bool:
    """Whether it is one of Kafka's own, which nobody may change."""
    return getattr(topic, "internal", False)


def check_not_internal(session: KafkaSessionPort, name: str) -> None:
    """Raises InvalidTopic for what can only be read."""
    if name not in session.broker.topics and name in session.broker.internal.by_name:
        raise InvalidTopic(f"'{name}' is an internal topic: it can only be read")


def topic_of(session: KafkaSessionPort, name: str, uuid: bytes, by_id: bool, *, reading: bool = True) -> Any:
    """The topic that an entry of a request means, or the Code that says why there is none."""
    if not by_id:
        return topic_named(session, name, reading=reading) or Code.UNKNOWN_TOPIC_OR_PARTITION
    if uuid == UUID_ZERO:
        return Code.UNKNOWN_TOPIC_ID
    return topic_by_id(session, uuid, reading=reading) or Code.UNKNOWN_TOPIC_ID


def source_for(session: KafkaSessionPort, name: str, index: int) -> Any:
    """What is read as this partition: something that satisfies `SourcePort`. Raises UnknownTopic, UnknownPartition."""
    topic = topic_named(session, name)
    if topic is None:
        raise UnknownTopic(f"there is no topic '{name}'", topic=name)
    if not 0 <= index < len(topic.partitions):
        raise UnknownPartition(f"'{name}' has partitions 0 to {len(topic.partitions) - 1}, not {index}")
    return topic.partitions[index]


def wrong_epoch(source: Any, epoch: int) -> Code:
    """What is wrong with the leader epoch that a client believes in (KIP-320); -1: it has none to check."""
    if epoch < 0 or epoch == source.epoch:
        return Code.NONE
    return Code.FENCED_LEADER_EPOCH if epoch < source.epoch else Code.UNKNOWN_LEADER_EPOCH
