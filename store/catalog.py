"""The broker's catalog: its cluster id, its topics and their settings, and which producer ids were given.

The tree (local_tree.py) holds all that a cluster would agree on. Beside it stands what only this broker uses: the
number of each partition's view. Every change is one atomic write, on disk when it returns. When a change fails, nothing
has changed, but numbers and ids that it took are not given again. Topics change in an order that is safe in a crash:

- Created: the topic is written and synced here first, then its folders and views are made. On open, missing ones are
  made, empty.
- Deleted: `delete` removes the topic from the tree and notes the deletion; then its folders and views are removed; then
  `forget` removes the note. On open, noted deletions are finished. A new topic of the same name may exist at once: it
  has another id and other partition numbers.

A topic keeps the defaults of the version that it was created under (`topic_table.GENERATIONS`): its znode has the
number of their generation.

Partition numbers and producer ids are never given twice, whatever is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar

import msgpack

from krappy.core.cluster import places
from krappy.core.cluster.decide import decide, touched
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.state import NOBODY, PartitionState, write_state
from krappy.core.cluster.tree import Changes, Create, Delete, Operation, Put
from krappy.errors import InvalidPartitions, StorageError, TopicExists, UnknownTopic
from krappy.settings.topic import TopicConfig, check_topic_name, merge
from krappy.settings.topic_table import GENERATION, GENERATIONS, Given, normalise
from krappy.store import format_2, znodes
from krappy.store.format import DATA_FORMAT
from krappy.store.keys import MAX_NUMBER
from krappy.store.local_tree import SESSION, LocalTree, records
from krappy.store.meta import LOST, Meta
from krappy.store.overrides import config_change
from krappy.types import id_of, text_id

FORMAT = b"c/format"
NEXT_NUMBER = b"c/next-number"
NUMBERS = b"n/"
FAR = 1_000_000  # producer ids
STARTS = 1_000  # starts that a damaged or older catalog may not know of
MAX_PARTITIONS = 100_000  # of one topic
STEP = 1_000  # records of an older format between two words of progress
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic in the catalog. `id`: 16 bytes, never given to another topic. `config`: only the settings that were
    given, by Kafka's names. `numbers`: for each partition the number of its view. `generation`: which defaults the
    topic was created under."""

    name: str
    id: bytes
    config: dict[str, str]
    numbers: list[int]
    generation: int = 0

    @property
    def defaults(self) -> Mapping[str, str]:
        """Its generation's defaults that differ from those of a topic created now."""
        return GENERATIONS[self.generation]


class Catalog:
    """The catalog, also held in memory: lookups read no disk. Safe for several threads."""

    def __init__(self, meta: Meta, *, change: bool = True, tell: Callable[[int], None] = lambda records: None) -> None:
        """Reads the catalog, and gives a new one its cluster id. A catalog of an older format is converted first;
        `tell` is called now and then with the number of converted records. Raises StorageError for a record that can't
        be read.

        `change` False: nothing is written.
        """
        self._meta = meta
        self._lock = Lock()
        self._replicas: tuple[int, ...] = ()  # of a partition that is made now
        self._check_format()
        if change:
            self._note_format()
            self._migrate(tell)
            self.tree = LocalTree(meta)
            numbers = dict(meta.items(NUMBERS))
        else:
            steps = list(format_2.steps(meta))
            self.tree = LocalTree(meta, {path: data for step in steps for path, data in step.znodes.items()})
            numbers = dict(meta.items(NUMBERS)) | {key: value for step in steps for key, value in step.puts.items()}
        self._numbers = {key[len(NUMBERS) :]: _read(key, msgpack.unpackb, value) for key, value in numbers.items()}
        self._topics = {name: self._topic(name) for name in self.tree.image.topics}
        self._deleting = {each.id: each for each in map(self._deleted, self.tree.children(places.DELETED))}
        found = meta.get(NEXT_NUMBER)
        self._next_number = 1 if found is None else int.from_bytes(found, "big")
        self._next_producer = self._reserved = self._znode(places.PRODUCER_IDS, znodes.producer_ids_following, 0)
        id = self._znode(places.CLUSTER_ID, znodes.cluster_id, b"")
        if not id:
            id = new_id()
            if change:
                self.tree.commit([Create(places.CLUSTER_ID, znodes.cluster(id))])
        self.cluster_id = text_id(id)

    def register(
        self, broker: int, endpoints: Mapping[str, tuple[str, int]] = MappingProxyType({}), rack: str | None = None
    ) -> Image:
        """Registers this broker, which then leads all partitions in a new leader epoch: writes of the last one that
        were not acknowledged may be lost.

        `endpoints`: host and port by the listener's name. Topics that this folder has from another broker id become
        this broker's. Durable. Raises StorageError.
        """
        self._replicas = (broker,)
        registered = self.tree.get(places.epoch(broker))
        epoch = 0 if registered is None else registered.version + 1
        path = places.epoch(broker)
        entered: list[Operation] = [Create(path, b"{}") if registered is None else Put(path, registered.data)]
        entered.append(Create(places.broker(broker), znodes.registration(epoch, endpoints, rack), SESSION))
        entered += self._control(broker, epoch)
        for topic in self.tree.image.topics.values():
            if any(each.replicas != self._replicas for each in topic.partitions):
                entered += self._take_over(topic)
        self.tree.follow(_follow)
        return self.tree.commit(entered)

    def _control(self, broker: int, epoch: int) -> Iterator[Operation]:
        """What makes this broker the controller."""
        found = self.tree.get(places.CONTROLLER_EPOCH)
        path = places.CONTROLLER_EPOCH
        yield Create(path, b"1") if found is None else Put(path, b"%d" % (found.version + 2))
        yield Create(places.CONTROLLER, znodes.controller(broker, epoch), SESSION)

    def list(self) -> Sequence[StoredTopic]:
        """Every topic, by name."""
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def get(self, name: str) -> StoredTopic | None:
        """The topic of this name, if there is one."""
        return self._topics.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def image(self, name: str) -> TopicImage:
        """What the cluster knows of an existing topic. Raises KeyError."""
        return self.tree.image.topics[name]

    def deleting(self) -> Sequence[StoredTopic]:
        """Deleted topics whose folders or views may still exist, without their settings. To be removed on open; then
        `forget` them."""
        return [*self._deleting.values()]

    def create(self, name: str, partitions: int, config: Mapping[str, Given] | None = None) -> StoredTopic:
        """Adds a topic, durably. Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig, StorageError."""
        check_topic_name(name)
        held = normalise(config or {})
        TopicConfig.parse(held)
        with self._lock:
            if name in self._topics:
                raise TopicExists(f"the topic '{name}' exists")
            id = new_id()
            data = znodes.topic(id, [self._replicas] * _checked(partitions), GENERATION)
            made: list[Operation] = [Create(places.topic(name), data), Create(places.partitions(name))]
            made += config_change(self.tree, places.config("topics", name), held)
            return self._save(StoredTopic(name, id, held, [], GENERATION), partitions, made)

    def add_partitions(self, name: str, total: int) -> StoredTopic:
        """Gives a topic more partitions, durably. `total`: their new number. Raises UnknownTopic, InvalidPartitions,
        StorageError."""
        with self._lock:
            topic = self._find(name)
            if total <= len(topic.numbers):
                raise InvalidPartitions(f"'{name}' has {len(topic.numbers)} partitions; their number can only grow")
            return self._save(topic, total, [self._assign(name, topic.id, _checked(total), topic.generation)])

    def alter(self, name: str, changes: Mapping[str, Given]) -> StoredTopic:
        """Changes settings, durably; None resets one to its default. Raises UnknownTopic, InvalidConfig,
        StorageError."""
        with self._lock:
            topic = self._find(name)
            config = merge(topic.config, changes)
            self.tree.commit(config_change(self.tree, places.config("topics", name), config))
            self._topics[name] = replace(topic, config=config)
            return self._topics[name]

    def delete(self, name: str) -> StoredTopic:
        """Deletes a topic, durably, and notes that its folders and views have to be removed. Raises UnknownTopic,
        StorageError."""
        with self._lock:
            topic = self._find(name)
            below = [Delete(path) for path, _ in self.tree.under(places.topic(name))]
            config = config_change(self.tree, places.config("topics", name), {})
            self.tree.commit([*reversed(below), *config, Create(places.deleted(topic.id), znodes.deleted(name))])
            del self._topics[name]
            self._deleting[topic.id] = StoredTopic(name, topic.id, {}, topic.numbers)
            return topic

    def forget(self, topic: StoredTopic) -> None:
        """Forgets a deleted topic. To be called once all its folders and views are gone from the disk."""
        with self._lock:
            if topic.id in self._deleting:
                self.tree.commit([Delete(places.deleted(topic.id))], deletes=[NUMBERS + topic.id])
                del self._deleting[topic.id], self._numbers[topic.id]

    def next_producer_id(self) -> int:
        """A producer id that was never given before. Syncs once per thousand ids. Raises StorageError."""
        with self._lock:
            if self._next_producer == self._reserved:
                self._reserve(self._reserved + znodes.PRODUCER_BLOCK)
            given = self._next_producer
            self._next_producer += 1
            return given

    def was_given(self, producer_id: int) -> bool:
        """Whether this catalog may have given this producer id."""
        return producer_id < self._next_producer

    def know_producer_ids(self, found: Iterable[int]) -> None:
        """Never gives any of these producer ids. They are in logs although this catalog has not given them, as after
        damage to it; the batches of a new producer with such an id would be taken for duplicates. Ids more than FAR
        ahead are ignored: a client made them up, and it takes long to reach them. Durable. Raises StorageError."""
        near = [each for each in found if self._next_producer <= each < self._next_producer + FAR]
        if near:
            self.skip_producer_ids(max(near) + 1 - self._next_producer)

    def skip_epochs(self, starts: int) -> None:
        """Raises all leader epochs by `starts`. This catalog may not know of that many starts; if their epochs were
        used again, events of then would be taken for events of now. Durable. Raises StorageError."""
        with self._lock:
            found: list[Operation] = []
            for topic in self.tree.image.topics.values():
                for index, each in enumerate(topic.partitions):
                    if each.version >= 0:
                        state = each.state._replace(leader_epoch=each.state.leader_epoch + starts)
                        found.append(self._put_state(topic.name, index, state))
            self.tree.commit(found)

    def skip_producer_ids(self, count: int) -> None:
        """Skips the next `count` producer ids: they may have been given without this catalog knowing. Durable."""
        with self._lock:
            self._reserve(self._reserved + count)
            self._next_producer = self._reserved

    def pass_over(self, changes: int, number: int) -> None:
        """Skips the producer ids and leader epochs that `changes` lost changes may have given, and partition numbers up
        to `number`. Then deletes the record of the loss. Durable."""
        self.skip_epochs(min(changes, STARTS))
        with self._lock:
            following = max(self._next_number, number + 1)
            puts = {NEXT_NUMBER: following.to_bytes(8, "big")}
            self._reserve(self._reserved + znodes.PRODUCER_BLOCK * changes, puts, [LOST])
            self._next_producer, self._next_number = self._reserved, following

    def _reserve(
        self, following: int, puts: Mapping[bytes, bytes] | None = None, deletes: Sequence[bytes] = ()
    ) -> None:
        """Reserves all producer ids below `following`, together with other changes. Durable."""
        path, data = places.PRODUCER_IDS, znodes.producer_ids(following)
        self.tree.commit([Create(path, data) if self.tree.get(path) is None else Put(path, data)], puts, deletes)
        self._reserved = following

    def _find(self, name: str) -> StoredTopic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic '{name!s:.249}'")
        return topic

    def _take_over(self, topic: TopicImage) -> Iterator[Operation]:
        """What makes a topic of another broker id, whose folder this broker has, this one's."""
        yield self._assign(topic.name, topic.id, len(topic.partitions), topic.generation)
        for index, each in enumerate(topic.partitions):
            if each.version >= 0:
                state = each.state._replace(leader=NOBODY, isr=self._replicas, elr=(), last_known_elr=())
                yield self._put_state(topic.name, index, state)

    def _put_state(self, topic: str, index: int, state: PartitionState) -> Operation:
        path = places.state(topic, index)
        before = self.tree.get(path)
        return Put(path, write_state(state, None if before is None else before.data))

    def _assign(self, name: str, id: bytes, partitions: int, generation: int) -> Operation:
        """What gives all the topic's partitions to this broker."""
        before = self.tree.get(places.topic(name))
        assert before is not None
        return Put(places.topic(name), znodes.topic(id, [self._replicas] * partitions, generation, before.data))

    def _save(self, topic: StoredTopic, partitions: int, operations: Sequence[Operation]) -> StoredTopic:
        more = partitions - len(topic.numbers)
        following = self._next_number + more
        if following > MAX_NUMBER + 1:
            raise InvalidPartitions("every partition number there is has been used")
        saved = replace(topic, numbers=[*topic.numbers, *range(self._next_number, following)])
        self._meta.put(NEXT_NUMBER, following.to_bytes(8, "big"))
        self._next_number = following  # before the commit: if that fails, a topic with these may be on the disk
        kept = [saved.name, saved.numbers]
        self.tree.commit(operations, {NUMBERS + topic.id: bytes(msgpack.packb(kept))})
        self._numbers[topic.id] = kept
        self._topics[topic.name] = saved
        return saved

    # --- what is kept

    def _topic(self, name: str) -> StoredTopic:
        found = self.tree.image.topics[name]
        config = dict(self.tree.image.config("topics", name))
        numbers = self._numbers.get(found.id, [name, []])[1]
        if len(numbers) != len(found.partitions):
            raise StorageError(
                f"the catalog is damaged: the topic '{name}' has {len(found.partitions)} partitions, but "
                f"view numbers for {len(numbers)}. Restore a backup"
            )
        return StoredTopic(name, found.id, config, numbers, found.generation)

    def _deleted(self, text: str) -> StoredTopic:
        id = _read(text, id_of, text)
        name, numbers = self._numbers.get(id, ["", []])
        return StoredTopic(name, id, {}, numbers)

    def _znode(self, path: str, read: Callable[[bytes], T], default: T) -> T:
        found = self.tree.get(path)
        return default if found is None else _read(path, read, found.data)

    def _migrate(self, tell: Callable[[int], None]) -> None:
        done = 0
        for done, step in enumerate(format_2.steps(self._meta), 1):
            self._meta.write({**records(step.znodes), **step.puts}, step.deletes)
            if done % STEP == 0:
                tell(done)
        if done:
            self._meta.sync()
        if done % STEP:
            tell(done)

    def _check_format(self) -> None:
        """Raises StorageError for data of a newer version, which this one may misread."""
        found = self._format()
        if found > DATA_FORMAT:
            raise StorageError(
                f"{self._meta.folder.parent} was written by a newer version of Krappy (its format is {found}, and this "
                f"version knows {DATA_FORMAT}): run that version again, or restore a backup that this one has made"
            )

    def _note_format(self) -> None:
        """Raises the stored format to this version's, before anything is written that an older version can't read."""
        if self._format() < DATA_FORMAT:
            self._meta.put(FORMAT, DATA_FORMAT.to_bytes(4, "big"))
            self._meta.sync()

    def _format(self) -> int:
        return int.from_bytes(self._meta.get(FORMAT) or b"", "big")


def _follow(image: Image, changes: Changes) -> list[Operation]:
    return decide(image, touched(image, changes))


def _checked(partitions: int) -> int:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitions(f"{partitions} partitions: 1 to {MAX_PARTITIONS} are possible")
    return partitions


def _read(where: str | bytes, read: Callable[[Any], T], data: Any) -> T:
    try:
        return read(data)
    except Exception as error:
        raise StorageError(f"the catalog's record {where!r} can't be read: {error or type(error).__name__}") from error


def new_id() -> bytes:
    """16 random bytes for a topic or a cluster. Its text (`text_id`) never begins with a dash, for that would look like
    an option on a command line (Kafka's Uuid avoids that too)."""
    while True:
        found = uuid.uuid4().bytes
        if not text_id(found).startswith("-"):
            return found
