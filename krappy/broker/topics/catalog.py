"""The broker's catalog: its topics and their settings, which producer ids were given, and its registration.

It changes the tree that all brokers agree on (`Store`, tree_changes.py), and the numbers of this broker's views. If a
change fails, nothing has changed, except that numbers and ids that it took are not given again. Topics change
in an order that is safe in a crash:

- Created: the topic gets its numbers; then it is written to the tree; then its folders and views are made. On open,
  numbers of topics that the tree does not have are forgotten, and missing folders are made, empty.
- Deleted: `delete` removes the topic from the tree and notes the deletion; then its folders and views are removed; then
  `forget` removes the note, and then the numbers. On open, noted deletions are finished. A new topic of the same name
  may exist at once: it has another id and other partition numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

import trio

from krappy.broker.local_store import LocalStore
from krappy.broker.tree_changes import change, config_change
from krappy.core.cluster import paths, registration, znodes
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.state import NOBODY, write_state
from krappy.core.cluster.tree import Create, Delete, Operation, Put, Znode
from krappy.errors import InvalidPartitions, StorageError, TopicExists, UnknownTopic
from krappy.ports.store import Store
from krappy.settings.topic import TopicConfig, check_topic_name, merge
from krappy.settings.topic_table import GENERATION, Given, normalise
from krappy.store.catalog import LocalCatalog, StoredTopics, new_id
from krappy.store.catalog import StoredTopic as StoredTopic
from krappy.store.meta import LOST, Meta
from krappy.store.refusals import reading
from krappy.store.view_numbers import ViewNumbers

FAR = 1_000_000  # producer ids
STARTS = 1_000  # starts that a damaged or older catalog may not know of
MAX_PARTITIONS = 100_000  # of one topic
T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]


class Catalog(StoredTopics):
    """`in_thread` runs what waits for this broker's disk."""

    def __init__(self, store: Store, numbers: ViewNumbers, in_thread: InThread[None], broker: int) -> None:
        """`broker`: this broker's id."""
        super().__init__(lambda: store.image, numbers)
        self._store = store
        self._broker = broker
        self.numbers = numbers
        self._in_thread = in_thread
        self._ids = trio.Lock()  # held while producer ids are reserved
        self._next_producer = self._reserved = 0

    async def open(self) -> None:
        """Reads what the image does not have. Raises StorageError."""
        found = await self._store.read(paths.PRODUCER_IDS)
        self._next_producer = self._reserved = _following(found)

    async def forget_unmade(self) -> None:
        """Forgets numbers of topics that were not made, for a broker that is alone."""
        image = self._store.image
        with suppress(StorageError):  # a full disk: the next start forgets them
            await self._in_thread(lambda: self.numbers.forget(self.numbers.known() - {*image.names, *image.deleted}))

    async def register(
        self,
        endpoints: Mapping[str, tuple[str, int]] = MappingProxyType({}),
        rack: str | None = None,
        now_ms: int | None = None,
    ) -> Image:
        """Registers this broker, which then leads all partitions in a new leader epoch: writes of the last one that
        were not acknowledged may be lost.

        `endpoints`: host and port by the listener's name. Topics that this folder has from another broker id become
        this broker's. Durable. Raises StorageError.
        """
        broker = self._broker
        registered = await self._store.read(paths.epoch(broker))
        session = self._store.session
        epoch, entered = registration.enter(broker, registered, endpoints, rack, session, now_ms=now_ms)
        controller_epoch = await self._store.read(paths.CONTROLLER_EPOCH)
        entered += registration.control(broker, epoch, controller_epoch, session)
        for topic in self._store.image.topics.values():
            if any(each.replicas != (broker,) for each in topic.partitions):
                znode = await self._read(paths.topic(topic.name))
                entered += registration.take_over(topic, znode, await self._states(topic), broker)
        return await self._store.multi(entered)

    def deleting(self) -> Sequence[StoredTopic]:
        """Deleted topics of which this broker may have folders or views, by id."""
        gone = self._store.image.deleted
        others = {id for id, each in gone.items() if each.replicas and self._broker not in each.replicas}
        return [each for each in super().deleting() if each.id not in others]  # a thread may have changed the image

    def image(self, name: str) -> TopicImage:
        """What the cluster knows of an existing topic. Raises KeyError."""
        return self._store.image.topics[name]

    def told(self, name: str) -> dict[str, Any] | None:
        """A topic as the audit log tells it."""
        image = self._store.image
        found = image.topics.get(name)
        if found is None:
            return None
        return {"partitions": len(found.partitions), "config": dict(image.config(paths.TOPIC_CONFIG, name))}

    async def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Given] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> StoredTopic:
        """Adds a topic, durably. `replicas`: the brokers of each partition, in a cluster; by default this one, which
        is alone. Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig, StorageError."""
        check_topic_name(name)
        held = normalise(config or {})
        TopicConfig.parse(held)
        if name in self:
            raise TopicExists(f"the topic '{name}' exists")
        id = new_id()
        count = _checked(partitions)
        marks = replicas is not None and self._store.image.level(znodes.STRAYS_MARKED) > 0
        placed = replicas or [(self._broker,)] * count
        data = znodes.topic(id, placed, GENERATION, scattered=False if marks else None)
        await self._in_thread(lambda: self.numbers.give(id, name, partitions))

        async def made() -> list[Operation]:
            if name in self:
                raise TopicExists(f"the topic '{name}' exists")
            config = paths.config("topics", name)
            settings = config_change(config, await self._store.read(config), held)
            below = [Create(paths.identity(name, id)), Create(paths.partitions(name))]
            return [Create(paths.topic(name), data), *below, *settings]

        await change(self._store, made)
        return self._find(name)

    async def add_partitions(
        self, name: str, total: int, replicas: Sequence[Sequence[int]] | None = None, *, scattered: bool = False
    ) -> StoredTopic:
        """Gives a topic more partitions, durably. `total`: their new number. `replicas`: the brokers of each added
        partition. `scattered`: the topic is marked as scattered (scattered.py). Raises UnknownTopic, InvalidPartitions,
        StorageError."""
        topic = self._find(name)
        count = len(self.image(name).partitions)
        if total <= count:
            raise InvalidPartitions(f"'{name}' has {count} partitions; their number can only grow")
        _checked(total)
        await self._in_thread(lambda: self.numbers.give(topic.id, name, total))

        async def made() -> list[Operation]:
            if self._find(name).id != topic.id:
                raise UnknownTopic(f"the topic '{name!s:.249}' was deleted meanwhile")
            image = self.image(name)
            count = len(image.partitions)
            if count >= total:
                raise InvalidPartitions(f"'{name}' has {count} partitions; their number can only grow")
            added = replicas or [(self._broker,)] * (total - count)
            if count + len(added) != total:
                raise InvalidPartitions(f"'{name}' has got more partitions meanwhile")
            return [
                *image.unless_deleted(),
                image.put_replicas(
                    [*image.partitions, *(PartitionImage(tuple(each)) for each in added)], scattered=scattered
                ),
            ]

        await change(self._store, made)
        return self._find(name)

    async def alter(self, name: str, changes: Mapping[str, Given]) -> StoredTopic:
        """Changes settings, durably; None resets a setting to its default. Other brokers may change other settings
        meanwhile. Raises UnknownTopic, InvalidConfig, StorageError."""
        id = self._find(name).id
        path = paths.config("topics", name)

        async def made() -> list[Operation]:
            if self._find(name).id != id:
                raise UnknownTopic(f"the topic '{name!s:.249}' was deleted meanwhile")
            fence = self.image(name).unless_deleted()
            before = await self._store.read(path)
            with reading(path):
                held = {} if before is None else znodes.settings(before.data)
            return [*fence, *config_change(path, before, merge(held, changes))]

        await change(self._store, made)
        return self._find(name)

    async def delete(self, name: str) -> StoredTopic:
        """Deletes a topic, durably, and notes that its folders and views have to be removed. Raises UnknownTopic,
        StorageError."""
        topic = self._find(name)

        async def made() -> list[Operation]:
            if self._find(name).id != topic.id:
                raise UnknownTopic(f"the topic '{name!s:.249}' was deleted meanwhile")
            image = self.image(name)
            replicas = sorted({each for partition in image.partitions for each in partition.replicas})
            below: list[Operation] = [Create(paths.deleted(topic.id), znodes.deleted(name, replicas))]
            config = paths.config("topics", name)
            below += config_change(config, await self._store.read(config), {})
            for index, partition in enumerate(image.partitions):
                if partition.version >= 0:
                    below += [Delete(paths.state(name, index)), Delete(paths.partition(name, index))]
            if image.identified:
                below.append(Delete(paths.identity(name, topic.id)))
            return [*below, Delete(paths.partitions(name)), Delete(paths.topic(name))]

        await change(self._store, made)
        return topic

    async def forget(self, topic: StoredTopic) -> None:
        """Forgets a deleted topic. To be called once all its folders and views are gone from this broker's disk. Raises
        StorageError."""
        path = paths.deleted(topic.id)

        async def made() -> list[Operation]:
            gone, znode = self._store.image.deleted.get(topic.id), await self._store.read(path)
            if gone is None or znode is None:
                return []
            left = [each for each in gone.replicas if each != self._broker]
            return [Put(path, znodes.deleted(gone.name, left), znode.version) if left else Delete(path, znode.version)]

        await change(self._store, made)
        await self._in_thread(lambda: self.numbers.forget([topic.id]))

    # --- producer ids

    async def next_producer_id(self) -> int:
        """A producer id that was never given before. Writes once per thousand ids. Raises StorageError."""
        async with self._ids:
            if self._next_producer == self._reserved:
                await self._reserve(znodes.PRODUCER_BLOCK)
            given = self._next_producer
            self._next_producer += 1
            return given

    def was_given(self, producer_id: int) -> bool:
        """Whether a broker may have given this producer id. The last blocks of other brokers may not be in the image
        yet."""
        image = self._store.image
        others = len(image.brokers) - 1
        reserved = max(self._next_producer, image.producer_ids + max(0, others) * znodes.PRODUCER_BLOCK)
        return producer_id < reserved and not self._next_producer <= producer_id < self._reserved

    async def know_producer_ids(self, found: Iterable[int]) -> None:
        """Never gives any of these producer ids. They are in logs although this catalog has not given them, as after
        damage to it; the batches of a new producer with such an id would be taken for duplicates. Ids more than FAR
        ahead are ignored: a client made them up, and it takes long to reach them. Durable. Raises StorageError."""
        near = [each for each in found if self._next_producer <= each < self._next_producer + FAR]
        if near:
            await self.skip_producer_ids(max(near) + 1 - self._next_producer)

    async def skip_producer_ids(self, count: int) -> None:
        """Skips the next `count` producer ids: they may have been given without this catalog knowing. Durable."""
        async with self._ids:
            await self._reserve(count)
            self._next_producer = self._reserved

    async def _reserve(self, count: int) -> None:
        """Reserves the next `count` ids, durably: they follow all that any broker has reserved."""

        begin = 0

        async def made() -> list[Operation]:
            nonlocal begin
            path = paths.PRODUCER_IDS
            found = await self._store.read(path)
            begin = max(self._reserved, self._store.image.producer_ids, _following(found))
            data = znodes.producer_ids(begin + count)
            return [Create(path, data) if found is None else Put(path, data, found.version)]

        await change(self._store, made)
        if begin != self._reserved:
            self._next_producer = begin
        self._reserved = begin + count

    # --- after damage, or from a backup

    async def skip_epochs(self, starts: int) -> None:
        """Raises all leader epochs by `starts`. This catalog may not know of that many starts. If their epochs were
        used again, old events would be taken for new ones. Durable. Raises StorageError."""

        async def made() -> list[Operation]:
            found: list[Operation] = []
            for topic in self._store.image.topics.values():
                for index, znode in (await self._states(topic)).items():
                    state = topic.partitions[index].state
                    data = write_state(state._replace(leader_epoch=state.leader_epoch + starts), znode.data)
                    found.append(Put(paths.state(topic.name, index), data, znode.version))
            return found

        await change(self._store, made)

    async def pass_over(self, meta: Meta, changes: int) -> None:
        """Skips the producer ids and leader epochs that `changes` lost changes may have given. Then deletes the record
        of the loss. Durable. Raises StorageError."""
        await self.skip_epochs(min(changes, STARTS))
        await self.skip_producer_ids(znodes.PRODUCER_BLOCK * changes)
        await self._in_thread(lambda: meta.change_durably({}, [LOST]))

    # ---

    def _find(self, name: str) -> StoredTopic:
        topic = self.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic '{name!s:.249}'", topic=str(name)[:249])
        return topic

    async def _read(self, path: str) -> Znode:
        found = await self._store.read(path)
        if found is None:
            raise StorageError(f"the catalog is damaged: the znode {path} is missing. Restore a backup")
        return found

    async def _states(self, topic: TopicImage) -> dict[int, Znode]:
        """The znodes of its partitions' states, by index."""
        indexes = [index for index, each in enumerate(topic.partitions) if each.version >= 0]
        return {index: await self._read(paths.state(topic.name, index)) for index in indexes}


async def skip_ahead(meta: Meta, producer_ids: int) -> None:
    """For a restored catalog, before a broker opens it: skips `producer_ids` producer ids and STARTS leader epochs,
    which the broker may have given since the copy was made. Raises StorageError."""
    local = LocalCatalog(meta)
    catalog = Catalog(LocalStore(local.tree, trio.to_thread.run_sync), local.numbers, trio.to_thread.run_sync, NOBODY)
    await catalog.open()
    await catalog.skip_producer_ids(producer_ids)
    await catalog.skip_epochs(STARTS)


def _following(znode: Znode | None) -> int:
    """The first producer id that nobody has reserved. Raises StorageError."""
    with reading(paths.PRODUCER_IDS):
        return 0 if znode is None else znodes.producer_ids_following(znode.data)


def _checked(partitions: int) -> int:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitions(f"{partitions} partitions: 1 to {MAX_PARTITIONS} are possible")
    return partitions
