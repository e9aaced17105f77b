"""Creates, alters and deletes topics. One change of a topic at a time; those of different topics run side by side.

A change that has begun is finished, even if its client is gone. The steps of each, and what a crash between them
leaves:

- Create: what is left of a deleted topic of that name is removed. If a folder has events that no topic claims, the
  request is refused. Then the catalog has the topic, durably. Then its empty folders are made; the next start makes
  those that are missing. Their files are synced after the answer. If a folder can't be made, the topic is deleted
  again; if the disk refuses that too, the next create of that name or housekeeping tries again.
- Add partitions: their folders first, then the catalog. Folders that the catalog does not know are empty.
- Delete: the catalog marks the topic as deleted, durably. Reads, writes and waits in it fail. Groups' positions in it
  are deleted. Then the request is answered. Files and views are removed after that, and the mark goes last: as long as
  it is there, the next start, or a create of that name, removes what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from krappy.broker.name_locks import NameLocks
from krappy.broker.partition.partition import Partition
from krappy.broker.topics import deletion
from krappy.broker.topics.catalog import MAX_PARTITIONS
from krappy.broker.topics.opening import LogPlace, check_room, open_logs
from krappy.broker.topics.topic import Topic
from krappy.broker.topics.topic_names import TopicNames
from krappy.core.cluster.placement import DEFAULT, Placement
from krappy.errors import InvalidReplicationFactor, KrappyError, StorageError, TopicExists, UnknownTopic
from krappy.settings.topic import TopicConfig, merge
from krappy.settings.topic_table import Changes, changes_of
from krappy.store import identity
from krappy.store.catalog import StoredTopic as StoredTopic
from krappy.store.log import Log
from krappy.types import text_id

if TYPE_CHECKING:
    from krappy.broker.latest.latest import LatestTables
    from krappy.broker.partition.replica import Lent
    from krappy.broker.runtime import Runtime
    from krappy.broker.upkeep.room import Room

AT_ONCE = 100  # partitions that are made in one turn
SETTLE_S = 1.0  # how long new logs wait for their sync: clients that create topics and write to them come first
Defaults = Callable[[], Mapping[str, str]]


class TopicChanges:
    def __init__(
        self,
        runtime: Runtime,
        lent: Lent,
        room: Room,
        latest: LatestTables,
        defaults: Defaults,
        forget: deletion.Forget,
    ) -> None:
        """`defaults`: gives the broker's present defaults for topics."""
        self._runtime = runtime
        self._lent = lent
        self._room = room
        self._latest = latest
        self._defaults = defaults
        self._forget = forget
        self.names = TopicNames(runtime.topics.is_internal, runtime.config.latest_alias)
        self.locks = NameLocks()
        self._dying: dict[bytes, Topic] = {}  # by id: deleted topics whose files are still there
        self._behind = trio.CapacityLimiter(1)  # for syncs that no request waits for

    async def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Any],
        *,
        if_absent: bool,
        alike: bool,
        own: bool = False,
        replicas: Placement | None = None,
    ) -> tuple[Topic, bool]:
        runtime = self._runtime
        async with self.locks.of(name):
            runtime.check_taking()
            if if_absent and name in runtime.topics:
                return runtime.topics[name], False
            self.names.check(name, alike=alike, own=own)
            if name in runtime.topics:
                raise TopicExists(f"the topic '{name}' exists")
            inherited = self._defaults()
            TopicConfig.parse({**inherited, **config})
            runtime.views.check()
            self.names.add(name)  # at once: a colliding name has another lock, and must be refused meanwhile
            try:
                topic = await self._make(name, partitions, config, inherited)
            except BaseException:
                self.names.remove(name)
                raise
            runtime.topics.add(topic)
            runtime.spawn(self._settle, [partition.log for partition in topic.local.values()])
            runtime.report("topic_created", topic=name, partitions=partitions)
            runtime.topics.changed.fire()
            return topic, True

    async def _make(self, name: str, partitions: int, config: Mapping[str, Any], inherited: Mapping[str, str]) -> Topic:
        runtime = self._runtime
        await self._room.look()  # if the data folder is away, no folder may be made in its place
        await self._unmake(name)
        for dead in [dead for dead in runtime.catalog.deleting() if dead.name == name]:
            await self._bury(dead)
        if partitions <= MAX_PARTITIONS:
            check_room(partitions)  # before the catalog has it: adding and deleting so many there takes long
            await self._make_way(name, range(partitions))
        stored = await runtime.catalog.create(name, partitions, config)
        topic = Topic(stored, runtime.catalog.image(name), inherited)
        try:
            await self.open_partitions([(topic, stored)], new=True)
        except BaseException:  # all or nothing, with a full disk too
            await self._try_to_unmake(name)
            raise
        return topic

    async def _unmake(self, name: str) -> None:
        """Removes a topic that the catalog has but that could not be made. The caller holds its name. Raises
        StorageError."""
        runtime = self._runtime
        if name in runtime.catalog and name not in runtime.topics:
            await deletion.finish(runtime, self._forget, await runtime.catalog.delete(name))

    async def _try_to_unmake(self, name: str) -> None:
        try:
            await self._unmake(name)
        except KrappyError as error:
            self._runtime.report("deletion_unfinished", topic=name, error=str(error))

    async def place(self, partitions: int, factor: int = DEFAULT) -> Placement:
        """The brokers of each new partition. Raises InvalidReplicationFactor."""
        if factor not in (DEFAULT, 1):
            raise InvalidReplicationFactor(f"a replication factor of {factor}, but there is only one broker")
        return [(self._runtime.id,)] * partitions

    async def alter(
        self, name: str, wanted: Changes | None, partitions: int | None, replicas: Placement | None = None
    ) -> None:
        if not await self._alter(name, wanted, partitions, still=False):
            async with self._runtime.shrinking.of(name):
                await self._alter(name, wanted, partitions, still=True)

    async def _alter(self, name: str, wanted: Changes | None, partitions: int | None, *, still: bool) -> bool:
        """`still`: the caller holds `shrinking`, so that no events are removed from logs meanwhile. Gives False, and
        does nothing, if that is needed but not held."""
        runtime = self._runtime
        async with self.locks.of(name):
            runtime.check_taking()
            topic = runtime.topics.find(name)
            config = changes_of(wanted or {}, topic.given, topic.settings)
            given = merge(topic.given, config)
            if partitions not in (None, topic.count):
                await self._room.look()
            if partitions not in (None, topic.count) or topic.switches_view(given, topic.inherited):
                runtime.views.check()
            if topic.outlives(given, topic.inherited) and not still:
                return False
            await topic.prepare(given, topic.inherited)
            if partitions is not None and partitions != topic.count:
                await self._add_partitions(topic, partitions)
            if config:
                stored = await runtime.catalog.alter(name, config)
                await topic.configure(stored.config, topic.inherited)
            runtime.report("topic_altered", topic=name, partitions=topic.count, config=dict(config))
            runtime.topics.changed.fire()
            return True

    async def _add_partitions(self, topic: Topic, total: int) -> None:
        """Makes the logs, then changes the catalog: a log that cannot be made must not be in it on the next start.

        Partitions that the catalog has already, since an earlier request failed after that step, are opened as on a
        start.
        """
        runtime = self._runtime
        known = runtime.catalog.get(topic.name)
        if known is not None and len(known.numbers) == total:
            await self.open_partitions([(topic, known)], new=False)
            return
        added = range(topic.count, total if total <= MAX_PARTITIONS else 0)
        await self._make_way(topic.name, added)
        logs = await self._open_logs([(topic, index, 0) for index in added], new=True)
        try:
            stored = await runtime.catalog.add_partitions(topic.name, total)
        except BaseException:
            for log in logs:
                await runtime.attempt(str(log.folder), runtime.in_thread(log.destroy))
            raise
        await self._add([(topic, index, stored.numbers[index]) for index in added], logs)
        topic.strays.begin(topic.count)
        runtime.spawn(self._settle, logs)

    async def hear_of(self, name: str) -> None:
        """To be called before an existing topic is changed: another broker may have made it just now."""

    async def hear_of_all(self) -> None:
        """As `hear_of`, for a topic whose name is not known."""

    async def delete(self, name: str, id: bytes | None) -> None:
        runtime = self._runtime
        async with self.locks.of(name):
            runtime.check_taking()
            topic = runtime.topics.find(name)
            if id not in (None, topic.id):  # the topic that was meant was deleted during the wait for the lock
                raise UnknownTopic(f"the topic '{name}' was deleted, and made anew")
            await self._room.look()  # the catalog and the views need disk space for a deletion
            stored = await runtime.catalog.delete(name)
            runtime.topics.remove(topic)
            self.names.remove(name)
            topic.deleted = True
            self._dying[stored.id] = topic
            await deletion.close(runtime, self._latest, topic)
            try:
                await self._forget(stored.name, stored.id)
            except KrappyError as error:  # tried again when the files are removed
                runtime.report("deletion_unfinished", topic=name, error=str(error))
            runtime.report("topic_deleted", topic=name)
            runtime.topics.changed.fire()
            runtime.spawn(self.finish_deletion, stored)

    async def finish_deletion(self, stored: StoredTopic) -> None:
        """Tries to remove what is left of a deleted topic. If it is still open here, this is done once it is closed."""
        async with self.locks.of(stored.name):
            if stored.id in self._runtime.topics.by_id:
                return
            if any(dead.id == stored.id for dead in self._runtime.catalog.deleting()):
                await self._try_to_bury(stored)

    async def _try_to_bury(self, stored: StoredTopic) -> None:
        """As `_bury`, but reports an error instead of raising it: then the topic stays on the list of deletions."""
        try:
            await self._bury(stored)
        except KrappyError as error:
            self._runtime.report("deletion_unfinished", topic=stored.name, error=str(error))

    async def _bury(self, stored: StoredTopic) -> None:
        """Removes what is left of a deleted topic. The caller holds its name. Raises StorageError."""
        topic = self._dying.pop(stored.id, None)
        if topic is not None:
            await deletion.remove(self._runtime, topic)
        await deletion.finish(self._runtime, self._forget, stored)

    async def finish_deletions(self) -> None:
        """Tries again to remove what is left of deleted topics, and of topics that could not be made."""
        for name in [name for name in self._runtime.image.topics if name not in self._runtime.topics]:
            async with self.locks.of(name):
                await self._try_to_unmake(name)
        for stored in self._runtime.catalog.deleting():
            await self.finish_deletion(stored)

    async def bury_all(self) -> None:
        """Closes and removes the files of deleted topics, when the broker stops. The caller holds all names."""
        for stored in self._runtime.catalog.deleting() if self._dying else ():
            await self._try_to_bury(stored)

    # --- logs

    async def open_partitions(self, topics: Sequence[tuple[Topic, StoredTopic]], *, new: bool) -> None:
        """Opens the partitions that the catalog has of these topics and that they lack."""
        wanted = [
            (topic, index, stored.numbers[index])
            for topic, stored in topics
            for index in range(len(topic.local), len(stored.numbers))
        ]
        seen = [0 if new else self._runtime.views.applied(number) for *_, number in wanted]
        places = [(topic, index, applied) for (topic, index, _), applied in zip(wanted, seen, strict=True)]
        logs = await self._open_logs(places, new=new)
        await self._add(wanted, logs)
        for topic, _ in topics:
            topic.strays.begin(topic.count)

    async def _add(self, wanted: Sequence[tuple[Topic, int, int]], logs: Sequence[Log]) -> None:
        """Gives each topic its partitions, all in one turn."""
        made: list[Partition] = []
        for (topic, index, number), log in zip(wanted, logs, strict=True):
            made.append(self._partition(topic, index, number, log))
            if len(made) % AT_ONCE == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        for (topic, index, _), partition in zip(wanted, made, strict=True):
            topic.local[index] = partition
        for topic in {topic for topic, *_ in wanted}:
            topic.see(self._runtime.catalog.image(topic.name))

    def _partition(self, topic: Topic, index: int, number: int, log: Log) -> Partition:
        made = Partition(self._lent, topic.name, index, number, topic.config, log, topic.strays)
        made.lead(self._runtime.catalog.image(topic.name).partitions[index].state, self._runtime.id)
        return made

    async def _make_way(self, name: str, indexes: Iterable[int]) -> None:
        """Clears the folders of these new partitions. Raises StorageError when one has events that no topic claims."""
        runtime = self._runtime
        await runtime.in_thread(lambda: identity.make_way(runtime.folder_of(name, index) for index in indexes))

    async def _open_logs(self, wanted: Sequence[tuple[Topic, int, int]], *, new: bool) -> list[Log]:
        runtime = self._runtime

        def find() -> list[LogPlace]:
            return [
                LogPlace(
                    f"{topic.name}-{index}",
                    runtime.folder_of(topic.name, index),
                    topic.config,
                    text_id(topic.id),
                    runtime.reached.of(topic.id, index),
                    applied,
                )
                for topic, index, applied in wanted
            ]

        places = find() if len(wanted) <= AT_ONCE else await runtime.in_thread(find)  # many paths take long
        return await open_logs(
            places,
            runtime.disk_limiter,
            runtime.report,
            runtime.check_taking,
            new=new,
            synced=not (new and runtime.fsync),
        )

    async def _settle(self, logs: Sequence[Log]) -> None:
        """Syncs new logs and writes their checkpoints, after a while: a first event may have synced them already. With
        durability "os" there is nothing to do."""
        if not self._runtime.fsync:
            return

        def settle() -> None:
            for log in logs:
                if self._runtime.stopped:
                    return
                with suppress(StorageError):  # deleted meanwhile, or a full disk: its next sync does this too
                    log.settle()

        await trio.sleep(SETTLE_S)
        await trio.to_thread.run_sync(settle, limiter=self._behind)
