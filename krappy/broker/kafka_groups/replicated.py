"""Kafka groups of a cluster: events of `__consumer_offsets`, each a key and a value as `store/group_offsets.py` has
them. So a group's state is what the views of that topic say, on each of its replicas.

The leader of a group's partition coordinates the group. It loads the groups of the partition from its view, once that
has all that earlier leaders committed; until then it refuses requests for them. When it leads no more, it forgets them.
What it wrote counts once it is committed; if a write is not, memory is ahead of the topic, and the partition's groups
are loaded anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.tables.table import wait_for_views
from krappy.broker.topics.internal_topics import INTERNAL, OFFSETS
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.roles import Role
from krappy.core.kafka.offset import Offset
from krappy.entries.entry import unpack_entry
from krappy.errors import CoordinatorNotAvailable, KrappyError, NotCoordinator, StorageError
from krappy.ports import StoredAt
from krappy.records import batch as batches
from krappy.store.group_offsets import HEAD, GroupChange, GroupOffsets, KeptGroup, kept_groups, name_in
from krappy.store.keys import PREFIX_SIZE, view_end, view_prefix
from krappy.waiting import Later, wait_any

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

AT_ONCE = 500  # keys of a view that are read in one go
RETRY_S = 1.0  # after groups could not be loaded
FRAME = 30  # bytes of a record, beside its key and value, at most: lengths, and deltas of its offset and time


class GroupTable:
    """One partition of the topic, as it is written by its leader in one leader epoch."""

    def __init__(self, partition: Partition, failed: Callable[[GroupTable, KrappyError], None]) -> None:
        """`failed`: called when something that was written is not committed."""
        self.partition = partition
        self.epoch = partition.epoch
        self._failed = failed
        self._keys: dict[str, set[bytes]] = {}  # that there are, by group
        self._sent = self._done = 0  # how many writes
        self._waiting: deque[tuple[int, Later[None]]] = deque()
        self._ended: KrappyError | None = None

    def has(self, key: bytes) -> None:
        """Learns of a key that is there."""
        self._keys.setdefault(name_in(key), set()).add(key)

    def write(self, group: str, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        """One record batch. Raises StorageError, NotCoordinator, RecordTooLarge."""
        partition = self.partition
        if self._ended is not None:
            raise self._ended
        if partition.role is not Role.LEADER or partition.epoch != self.epoch:
            raise NotCoordinator(f"this broker does not coordinate '{group:.100}' any more")
        if not partition.replicas.enough:
            raise CoordinatorNotAvailable(f"too few replicas of {partition} are in sync to write to '{group:.100}'")
        keys = [*puts, *deletes]
        if not keys:
            return
        values = [*puts.values(), *(None for _ in deletes)]
        later = partition.publish(batches.encode(keys, values, timestamps=partition.now_ms()), epoch=self.epoch)
        held = self._keys.setdefault(group, set())
        held.update(puts)
        held.difference_update(deletes)
        if not held:
            del self._keys[group]
        self._sent += 1
        later.then(partial(self._settled, self._sent))

    def delete(self, group: str) -> None:
        """Several batches if one can't hold it, and the group's state last: until then it is there."""
        found = sorted(self._keys.get(group, ()), key=_head_last)
        for some in self._parts(found, len):
            self.write(group, {}, some)

    async def move_in(self, group: str, puts: Mapping[bytes, bytes]) -> None:
        """Writes a group that is not there, in several batches if one can't hold it, and its state last: without that
        it is not all there. On return it is committed. Raises as `write`."""
        for some in self._parts(sorted(puts, key=_head_last), lambda key: len(key) + len(puts[key])):
            self.write(group, {key: puts[key] for key in some}, [])
            await self.written().wait()

    def _parts(self, keys: list[bytes], size: Callable[[bytes], int]) -> Iterator[list[bytes]]:
        """Keys whose records fit into a batch, again and again. `size`: of a record, without its frame."""
        most = self.partition.config.max_message_bytes - batches.HEADER_SIZE
        part, left = list[bytes](), most
        for key in keys:
            left -= size(key) + FRAME
            if left < 0 and part:
                yield part
                part, left = [], most - size(key) - FRAME
            part.append(key)
        if part:
            yield part

    def _settled(self, number: int, stored: StoredAt | None, error: Exception | None) -> None:
        if error is not None:
            self.end(error if isinstance(error, KrappyError) else StorageError(str(error)))
            return
        self._done = number
        while self._waiting and self._waiting[0][0] <= number:
            self._waiting.popleft()[1].resolve(None)

    @property
    def behind(self) -> bool:
        """Whether something that was written is not committed."""
        return self._done < self._sent or self._ended is not None

    def written(self) -> Later[None]:
        later: Later[None] = Later()
        if self._ended is not None:
            later.reject(self._ended)
        elif not self.behind:
            later.resolve(None)
        else:
            self._waiting.append((self._sent, later))
        return later

    def end(self, error: KrappyError) -> None:
        """Takes no more writes. Who waits for one gets the error, too."""
        if self._ended is None:
            self._ended = CoordinatorNotAvailable(f"what was written to {self.partition} is not committed: {error}")
            waiting, self._waiting = self._waiting, deque()
            for _, later in waiting:
                later.reject(self._ended)
            self._failed(self, error)


class ReplicatedKeeper:
    """Implements `Keeper`. `loaded(groups)` is called with groups that this broker coordinates from now on, and
    `unloaded(is_in)` when it forgets those for whose name `is_in` is true."""

    def __init__(
        self,
        runtime: Runtime,
        loaded: Callable[[Mapping[str, KeptGroup]], None],
        unloaded: Callable[[Callable[[str], bool]], None],
    ) -> None:
        self._runtime = runtime
        self._loaded, self._unloaded = loaded, unloaded
        self._tables: dict[int, GroupTable] = {}  # by partition, of those whose groups are loaded
        self._loading: set[int] = set()
        self._troubled: set[int] = set()  # where a write was not committed: loading waits a little
        # What the folder has of groups from its time alone.
        self._own = GroupOffsets(runtime.meta)
        self._left = self._own.load_all()

    # --- Keeper

    def write(self, change: GroupChange) -> None:
        self._table(change.group).write(change.group, *change.rows())

    def delete(self, group: str) -> None:
        self._table(group).delete(group)

    @property
    def loading(self) -> bool:
        return bool(self._loading or self._new())

    def is_behind(self, group: str) -> bool:
        table = self._tables.get(self._index(group))
        return table is None or table.behind

    def written(self, group: str) -> Later[None]:
        try:
            return self._table(group).written()
        except KrappyError as error:
            later: Later[None] = Later()
            later.reject(error)
            return later

    def check_here(self, group: str) -> None:
        self._table(group)

    async def sure(self, group: str) -> None:
        table = self._table(group)
        await table.written().wait()
        try:
            await table.partition.until_sure()
        except KrappyError as error:
            raise CoordinatorNotAvailable(f"this broker can't be sure of '{group:.100}' now: {error}") from error
        if self._table(group) is not table:
            raise CoordinatorNotAvailable(f"'{group:.100}' was loaded anew meanwhile")

    def _table(self, group: str) -> GroupTable:
        table = self._tables.get(self._index(group))
        if table is None:
            raise CoordinatorNotAvailable(f"the coordinator of '{group:.100}' is away, or has not loaded it yet")
        return table

    def _index(self, group: str) -> int:
        found = self._runtime.image.topics.get(OFFSETS)
        return -1 if found is None else partition_of(group, len(found.partitions))

    # --- which partitions

    def begin(self) -> None:
        self._runtime.spawn(self._run)

    async def _run(self) -> None:
        """Loads and forgets groups as this broker leads partitions. Until cancelled."""
        topics = self._runtime.topics
        async with trio.open_nursery() as nursery:
            while True:
                for index in self._left_behind():
                    self._forget(index)
                for partition in self._new():
                    self._loading.add(partition.index)
                    nursery.start_soon(self._load, partition.index, partition, partition.epoch)
                await wait_any([topics.changed], lambda: bool(self._left_behind() or self._new()))

    @property
    def _local(self) -> Mapping[int, Partition]:
        topic = self._runtime.topics.get(OFFSETS)
        return {} if topic is None else topic.local

    def _left_behind(self) -> list[int]:
        """The partitions whose groups are loaded, and which this broker does not lead in that epoch any more."""
        local = self._local
        return [index for index, table in self._tables.items() if not _leads(local.get(index), table.epoch)]

    def _new(self) -> list[Partition]:
        """The partitions that this broker leads, and whose groups are not loaded."""
        known = self._tables.keys() | self._loading
        return [each for index, each in self._local.items() if each.role is Role.LEADER and index not in known]

    def _forget(self, index: int) -> None:
        table = self._tables.pop(index)
        table.end(NotCoordinator("another broker coordinates its groups"))
        self._unloaded(lambda name: self._index(name) == index)

    def _failed(self, table: GroupTable, error: KrappyError) -> None:
        index = table.partition.index
        if self._tables.get(index) is table:
            self._runtime.report("groups_reloaded", partition=str(table.partition), error=str(error))
            self._troubled.add(index)
            self._forget(index)
            self._runtime.topics.changed.fire()

    async def _load(self, index: int, partition: Partition, epoch: int) -> None:
        try:
            while _leads(partition, epoch) and not self._runtime.stopped:
                if index in self._troubled:
                    self._troubled.discard(index)
                    await trio.sleep(RETRY_S)
                table = GroupTable(partition, self._failed)
                try:
                    groups = await self._read(table)
                    groups |= await self._take_in(index, table, groups)
                    await self._forget_gone(table, groups)
                    if _leads(partition, epoch):
                        self._loaded(groups)
                        self._tables[index] = table
                    return
                except KrappyError as error:
                    self._runtime.report("groups_not_loaded", partition=str(partition), error=str(error))
                    self._troubled.add(index)
        finally:
            self._loading.discard(index)
            self._runtime.topics.changed.fire()

    async def _forget_gone(self, table: GroupTable, groups: Mapping[str, KeptGroup]) -> None:
        """Forgets positions in topics that were deleted while nobody coordinated their groups, durably."""
        for name, kept in groups.items():
            offsets = [at for at, offset in kept.offsets.items() if self._is_gone(at[0], offset)]
            pending = [at for at, offset in kept.pending.items() if self._is_gone(at[1], offset)]
            if offsets or pending:
                change = GroupChange(name, offsets=dict.fromkeys(offsets), pending=dict.fromkeys(pending))
                table.write(name, *change.rows())
                for at in offsets:
                    del kept.offsets[at]
                for pending_at in pending:
                    del kept.pending[pending_at]
        await table.written().wait()

    def _is_gone(self, name: str, offset: Offset) -> bool:
        """Whether the topic of this position is not there any more. The image is as new as this broker's leadership, so
        it has all topics that groups had positions in before that."""
        topic = self._runtime.topics.table_of(name) or name
        found = self._runtime.image.topics.get(topic)
        if found is None:
            return topic not in INTERNAL
        return bool(offset.topic_id) and offset.topic_id != found.id

    async def _read(self, table: GroupTable) -> dict[str, KeptGroup]:
        """The groups that are in the partition's view, once that has all of the log: a write that was refused may be
        there, and be committed later. If its keys were not known, a group that is deleted would be there again. Raises
        as `wait_for_views`, StorageError."""
        partition = table.partition
        await partition.appender.idle()
        folded = await wait_for_views([partition], partition.end_offset - 1)
        number, rows = partition.number, list[tuple[bytes, bytes]]()
        at: bytes | None = view_prefix(number)
        while at is not None:
            stored, at = partition.views.keys(at, view_end(number), AT_ONCE)
            keys = [key[PREFIX_SIZE:] for key in stored]
            for key, entry in zip(keys, partition.views.get_many(number, keys), strict=True):
                value = None if entry is None else unpack_entry(entry)[2]
                if value is not None:
                    rows.append((key, value))
                    table.has(key)
            await trio.lowlevel.checkpoint()
            await folded.wait()
        return kept_groups(rows)

    async def _take_in(self, index: int, table: GroupTable, there: Mapping[str, KeptGroup]) -> dict[str, KeptGroup]:
        """Moves what the folder has of groups from its time alone into the topic: those of this partition that are not
        `there`, or not wholly. If this is interrupted, the next load goes on."""
        mine = {name: kept for name, kept in self._left.items() if self._index(name) == index}
        fresh = {name: kept for name, kept in mine.items() if name not in there or there[name].head is None}
        for name, kept in fresh.items():
            puts, _ = GroupChange(name, kept.head, kept.members, kept.offsets, kept.pending).rows()
            await table.move_in(name, puts)
        for name in mine:
            self._own.delete(name)
            del self._left[name]
        if mine:
            await self._runtime.sync_meta()
        return fresh


def _head_last(key: bytes) -> tuple[bool, bytes]:
    return key.startswith(HEAD), key


def _leads(partition: Partition | None, epoch: int) -> bool:
    return partition is not None and partition.role is Role.LEADER and partition.epoch == epoch
