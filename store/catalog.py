"""What the broker knows about itself: its cluster id, its topics and their settings, the producer ids given out.

All of it is in the meta database, and every change is one atomic write; it is on disk after `Meta.sync`. When that
fails, the change is taken back, here and there; numbers and ids that it took stay taken. A change of topics comes in
an order that a crash can't spoil:

- Created: the topic is written and synced here first, its folders and views are made after it. What is missing of
  them on open is made then, empty.
- Deleted: `delete` moves the topic to the list `deleting` and syncs; folders and views go; `forget` takes it off the
  list. What is on the list on open is finished then. A new topic of the same name may exist at once: it has
  another id and other partition numbers.

A topic keeps the defaults of settings that it was made under (`topic_settings.GENERATIONS`), whatever a later version's
are: its record ends with the number of their generation. Records without one are of the first.

Partition numbers and producer ids are never given twice, whatever is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import msgpack

from krappy.errors import InvalidPartitions, StorageError, TopicExists, UnknownTopic
from krappy.store.format import DATA_FORMAT
from krappy.store.keys import MAX_NUMBER
from krappy.store.meta import Meta
from krappy.topic_config import GENERATION, GENERATIONS, Given, TopicConfig, check_topic_name, merge, normalise
from krappy.types import text_id

CLUSTER_ID = b"c/cluster"
FORMAT = b"c/format"
NEXT_NUMBER = b"c/next-number"
NEXT_PRODUCER = b"c/next-producer"
TOPIC = b"t/"
DELETING = b"d/"
FAR = 1_000_000  # producer ids
PRODUCER_BLOCK = 1000  # ids reserved by one write, as Kafka's ProducerIdManager does
MAX_PARTITIONS = 100_000  # of one topic


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is kept. `config`: only what was set, by Kafka's names; `numbers`: one for each partition, the
    dense number that its view is kept under. `id`: 16 bytes, never given to another topic. `generation`: of the
    defaults that it was made under."""

    name: str
    id: bytes
    config: dict[str, str]
    numbers: list[int]
    generation: int = 0

    @property
    def defaults(self) -> Mapping[str, str]:
        """The defaults that are others for it than for a topic made now."""
        return GENERATIONS[self.generation]


class Catalog:
    """The catalog, all of it in memory as well; the answer to a question costs no read. Safe for several threads."""

    def __init__(self, meta: Meta) -> None:
        """Reads the catalog, and gives a new one its cluster id. Raises StorageError for what it can't read."""
        self._meta = meta
        self._lock = Lock()
        self._check_format()
        self._topics = {topic.name: topic for topic in self._stored(TOPIC)}
        self._deleting = {topic.id: topic for topic in self._stored(DELETING)}
        self._next_number = self._counter(NEXT_NUMBER, 1)
        self._next_producer = self._reserved = self._counter(NEXT_PRODUCER, 0)
        held = meta.get(CLUSTER_ID)
        if held is None:
            held = new_id()
            meta.put(CLUSTER_ID, held)
            meta.sync()
        self.cluster_id = text_id(held)

    def list(self) -> Sequence[Topic]:
        """Every topic, by name."""
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def get(self, name: str) -> Topic | None:
        """The topic of this name, if there is one."""
        return self._topics.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def deleting(self) -> Sequence[Topic]:
        """Topics deleted whose folders or views may still exist. To be finished on open, then `forget`-ed."""
        return [*self._deleting.values()]

    def create(self, name: str, partitions: int, config: Mapping[str, Given] | None = None) -> Topic:
        """Adds a topic, durably. Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig, StorageError."""
        check_topic_name(name)
        held = normalise(config or {})
        TopicConfig.parse(held)
        with self._lock:
            if name in self._topics:
                raise TopicExists(f"the topic '{name}' exists")
            return self._save(Topic(name, new_id(), held, [], GENERATION), partitions)

    def add_partitions(self, name: str, total: int) -> Topic:
        """Gives a topic more partitions, durably. `total`: how many it is to have. Raises UnknownTopic,
        InvalidPartitions, StorageError."""
        with self._lock:
            topic = self._find(name)
            if total <= len(topic.numbers):
                raise InvalidPartitions(f"'{name}' has {len(topic.numbers)} partitions; their number can only grow")
            return self._save(topic, total)

    def alter(self, name: str, changes: Mapping[str, Given]) -> Topic:
        """Changes settings, durably; None takes one back to its default. Raises UnknownTopic, InvalidConfig,
        StorageError."""
        with self._lock:
            topic = self._find(name)
            config = merge(topic.config, changes)
            return self._save(replace(topic, config=config), len(topic.numbers))

    def delete(self, name: str) -> Topic:
        """Takes a topic out, durably, and remembers that its folders and views are to go. Raises UnknownTopic,
        StorageError."""
        with self._lock:
            topic = self._find(name)
            self._meta.change_durably({DELETING + topic.id: _pack(topic)}, [TOPIC + name.encode()])
            del self._topics[name]
            self._deleting[topic.id] = topic
            return topic

    def forget(self, topic: Topic) -> None:
        """The last of a deleted topic's folders and views is gone from the disk."""
        with self._lock:
            self._meta.delete(DELETING + topic.id)
            self._deleting.pop(topic.id, None)

    def next_producer_id(self) -> int:
        """A producer id that was never given before. Syncs once in a thousand."""
        with self._lock:
            if self._next_producer == self._reserved:
                reserved = self._reserved + PRODUCER_BLOCK
                self._meta.put(NEXT_PRODUCER, reserved.to_bytes(8, "big"))
                self._meta.sync()
                self._reserved = reserved
            given = self._next_producer
            self._next_producer += 1
            return given

    def was_given(self, producer_id: int) -> bool:
        """Whether somebody may have this producer id from here."""
        return producer_id < self._next_producer

    def know_producer_ids(self, found: Iterable[int]) -> None:
        """Never gives any of these, which stand in logs although this catalog has not given them, as after damage to
        it: who gets such an id would be told that what it sends is there already. Those far away were made up,
        and are not come to before many a start. Durable."""
        near = [each for each in found if self._next_producer <= each < self._next_producer + FAR]
        if near:
            self.skip_producer_ids(max(near) + 1 - self._next_producer)

    def skip_producer_ids(self, count: int) -> None:
        """Never gives the next `count` ids: somebody may have had them, of whom this catalog does not know. Durable."""
        with self._lock:
            self._next_producer = self._reserved = self._reserved + count
            self._meta.put(NEXT_PRODUCER, self._reserved.to_bytes(8, "big"))
            self._meta.sync()

    def pass_over(self, changes: int, number: int) -> None:
        """Never gives the producer ids that so many lost changes may have given, nor partition numbers up to `number`.
        Durable."""
        with self._lock:
            self._next_producer = self._reserved = self._reserved + PRODUCER_BLOCK * changes
            self._next_number = max(self._next_number, number + 1)
            self._meta.write(
                {
                    NEXT_PRODUCER: self._reserved.to_bytes(8, "big"),
                    NEXT_NUMBER: self._next_number.to_bytes(8, "big"),
                }
            )
            self._meta.sync()

    def _find(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic '{name!s:.249}'")
        return topic

    def _save(self, topic: Topic, partitions: int) -> Topic:
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidPartitions(f"{partitions} partitions: 1 to {MAX_PARTITIONS} are possible")
        more = partitions - len(topic.numbers)
        following = self._next_number + more
        if following > MAX_NUMBER + 1:
            raise InvalidPartitions("every partition number there is has been used")
        saved = replace(topic, numbers=[*topic.numbers, *range(self._next_number, following)])
        if more:
            self._meta.put(NEXT_NUMBER, following.to_bytes(8, "big"))
            self._next_number = following  # before anything can fail that leaves a topic with these on the disk
        self._meta.change_durably({TOPIC + topic.name.encode(): _pack(saved)})
        self._topics[topic.name] = saved
        return saved

    def _stored(self, prefix: bytes) -> Iterator[Topic]:
        for key, value in self._meta.items(prefix):
            try:
                yield Topic(*msgpack.unpackb(value))
            except Exception as error:
                raise StorageError(f"the catalog's record {key!r} can't be read: {error}") from error

    def _check_format(self) -> None:
        """Raises StorageError for data of a version to come: it may hold what this one would read wrongly."""
        found = self._counter(FORMAT, 0)
        if found > DATA_FORMAT:
            raise StorageError(
                f"{self._meta.folder.parent} was written by a newer version of Krappy (its format is {found}, and this "
                f"version knows {DATA_FORMAT}): run that version again, or restore a backup that this one has made"
            )
        if found < DATA_FORMAT:
            self._meta.put(FORMAT, DATA_FORMAT.to_bytes(4, "big"))
            self._meta.sync()

    def _counter(self, key: bytes, first: int) -> int:
        found = self._meta.get(key)
        return first if found is None else int.from_bytes(found, "big")


def new_id() -> bytes:
    """16 random bytes for a topic or a cluster, never those that text_id writes with a leading dash (Kafka's Uuid
    avoids them too: such an id looks like an option on a command line)."""
    while True:
        found = uuid.uuid4().bytes
        if not text_id(found).startswith("-"):
            return found


def _pack(topic: Topic) -> bytes:
    packed: Any = msgpack.packb([topic.name, topic.id, topic.config, topic.numbers, topic.generation])
    return bytes(packed)
