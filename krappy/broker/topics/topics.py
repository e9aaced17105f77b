"""The registry of topics, and of the partitions that this broker has."""

from __future__ import annotations

from collections.abc import Iterator

from krappy.broker.partition.partition import Partition
from krappy.broker.topics.internal_topics import INTERNAL
from krappy.broker.topics.topic import Topic
from krappy.core.latest import table_of
from krappy.errors import UnknownTopic
from krappy.types import TopicPartition
from krappy.waiting import Signal


class Topics(dict[str, Topic]):
    """All topics by name. `changed`: fired when one was created, deleted or changed."""

    def __init__(self, alias: str, own: str = "") -> None:
        """`alias`: the ending of names by which tables are read (the setting latest_alias). `own`: the name of the
        topic that the broker keeps its audit log in, which is an internal one, too; "": it has none."""
        super().__init__()
        self._own = own
        self.by_id: dict[bytes, Topic] = {}  # the same, by their 16 bytes
        self.changed = Signal()
        self._alias = alias

    def add(self, topic: Topic) -> None:
        topic.internal = self.is_internal(topic.name)
        self[topic.name] = self.by_id[topic.id] = topic

    def remove(self, topic: Topic) -> None:
        del self[topic.name], self.by_id[topic.id]

    def find(self, name: str) -> Topic:
        """Raises UnknownTopic."""
        found = self.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return found

    def led(self, at: TopicPartition) -> Partition:
        """A partition that this broker leads. Raises NotLeader, UnknownTopic, UnknownPartition."""
        return self.find(at.topic).led(at.partition)

    def local(self) -> Iterator[Partition]:
        """All partitions that this broker has. Topics may be created and deleted during the iteration."""
        for topic in list(self.values()):
            yield from list(topic.local.values())

    def is_internal(self, name: str) -> bool:
        """Whether only brokers write to the topic of this name, which need not exist yet."""
        return name in INTERNAL or (name != "" and name == self._own)

    def table_of(self, name: str) -> str | None:
        """The name of the topic whose table this name stands for. None if it is a topic's own name, or stands for no
        table."""
        return None if name in self else table_of(name, self._alias)
