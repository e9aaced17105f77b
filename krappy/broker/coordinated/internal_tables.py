"""The partitions of an internal topic that make this broker a coordinator: those that it leads and has loaded.

The leader of a partition coordinates the names (groups, transactional ids) that belong to it. It loads them from the
partition's view, once the view has all that earlier leaders committed. Until then it refuses requests for them. When it
does not lead any more, it forgets them. What it writes counts once it is committed. If a write is not committed, memory
is ahead of the topic: then everything that belongs to the partition is loaded anew.

A record that can't be read, or that is about a name of another partition, is left out and reported
(`coordinator_record_left_out`). Only what it says is missing then: at most its name, never the partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from krappy.broker.coordinated.internal_table import InternalKeys, InternalTable
from krappy.broker.tables.table import wait_for_views
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.entries.entry import unpack_entry
from krappy.errors import CoordinatorLoading, CoordinatorNotAvailable, KrappyError, NotCoordinator, StorageError
from krappy.store.keys import PREFIX_SIZE, key_range
from krappy.types import Headers
from krappy.waiting import Later, wait_any

if TYPE_CHECKING:
    from krappy.broker.coordinated.own_folder import OwnFolder
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

AT_ONCE = 500  # keys of a view that are read in one go
RETRY_S = 1.0  # after a partition could not be loaded
TOGETHER_S = 0.2  # partitions that fail to load within this time are reported in one line
Row = tuple[bytes, bytes, Headers]
Rows = list[Row]
Read = TypeVar("Read")
Kept = TypeVar("Kept")


class InternalTables(ABC, Generic[Kept]):
    """`Kept`: what is loaded of a partition."""

    _own: OwnFolder[Any]  # `read` moves it in

    def __init__(self, runtime: Runtime, topic: str, keys: InternalKeys) -> None:
        self._runtime = runtime
        self._topic, self._keys = topic, keys
        self._tables: dict[int, InternalTable] = {}  # by partition: the tables that are loaded
        self._loading: set[int] = set()
        self._troubled: set[int] = set()  # where a write was not committed: loading waits a little
        self._untold: dict[int, KrappyError] = {}  # by partition: why it can't be loaded; not reported yet
        self._told: set[int] = set()  # partitions whose failure was reported, and that were not loaded since

    # --- what each has of its own

    @abstractmethod
    async def read(self, index: int, table: InternalTable, rows: Rows) -> Kept:
        """Makes of a partition's rows what `take` is given. It goes through the rows by `readable`, and may write to
        the table, too. If it raises KrappyError, the load is tried again."""

    @abstractmethod
    def take(self, index: int, table: InternalTable, kept: Kept) -> None:
        """From now on this broker coordinates what was kept. Takes each name by `take_each`."""

    @abstractmethod
    def give_up(self, is_in: Callable[[str], bool]) -> None:
        """From now on this broker does not coordinate the names for which `is_in` is true."""

    def readable(
        self, table: InternalTable, rows: Iterable[Row], decode: Callable[[bytes, bytes, Headers], Read]
    ) -> Iterator[Read]:
        """What `decode` makes of each row, without those for which it raises StorageError."""
        for row in rows:
            try:
                yield decode(*row)
            except StorageError as error:
                table.unreadable.add(row[0], error)

    def take_each(self, table: InternalTable, names: Iterable[str], take: Callable[[str], None]) -> None:
        """Calls `take` with each name; those for which it raises are given up."""
        failed: set[str] = set()
        for name in names:
            try:
                take(name)
            except Exception as error:  # whatever is wrong with what was written of one name, the others are served
                table.unreadable.add(table.main_key(name), error)
                failed.add(name)
        if failed:
            self.give_up(failed.__contains__)

    # --- by name

    def check_here(self, name: str) -> None:
        """Raises CoordinatorLoading, CoordinatorNotAvailable unless this broker coordinates the name now."""
        self.table_of(name)

    def table_of(self, name: str) -> InternalTable:
        """Raises as `check_here`."""
        return self.table_at(self.index_of(name))

    def known_table(self, name: str) -> InternalTable | None:
        """As `table_of`; None instead of an error."""
        return self._tables.get(self.index_of(name))

    def written(self, name: str) -> Later[None]:
        """Resolved once all that was written of this name so far is committed; rejected if some of it is not, or as
        `check_here`."""
        try:
            return self.table_of(name).written()
        except KrappyError as error:
            later: Later[None] = Later()
            later.reject(error)
            return later

    async def sure(self, name: str) -> None:
        """Returns once memory says only what is committed, and no other broker can have changed it. Raises
        CoordinatorNotAvailable."""
        table = self.table_of(name)
        await table.written().wait()
        try:
            await table.partition.until_sure()
        except KrappyError as error:
            raise CoordinatorNotAvailable(f"this broker can't be sure of '{name:.100}' now: {error}") from error
        if self.table_of(name) is not table:
            raise CoordinatorNotAvailable(f"'{name:.100}' was loaded anew meanwhile")

    @property
    def loading(self) -> bool:
        """Whether there is something that this broker coordinates, and has not loaded yet."""
        return bool(self._loading or self._new() or self._awaited())

    @property
    def epoch(self) -> int:
        """A number that rises whenever a partition gets another leader, as far as this broker knows. Raises
        CoordinatorLoading unless it has loaded all that it leads, CoordinatorNotAvailable while a partition has no
        leader, or its leader is gone and no other was elected yet. So if all brokers give the same number, they
        coordinate all names together, and each name at one broker only."""
        states, brokers = self._states, self._runtime.image.brokers
        lost = [index for index, state in enumerate(states) if state.leader not in brokers]
        if lost:
            raise CoordinatorNotAvailable(f"no broker leads {self._topic}-{lost[0]} now, so nobody knows what it has")
        if self.loading:
            text = f"broker {self._runtime.id} has not loaded all its partitions of {self._topic} yet; ask again"
            raise CoordinatorLoading(text)
        return sum(state.leader_epoch + 1 for state in states)

    def table_at(self, index: int) -> InternalTable:
        """The table of a partition. Raises as `check_here`."""
        table = self._tables.get(index)
        if table is None:
            if index in self._loading:
                raise CoordinatorLoading(f"this broker is loading what {self._topic}-{index} has; ask again")
            raise CoordinatorNotAvailable(f"the broker that leads {self._topic}-{index} is away, or has not loaded it")
        return table

    def index_of(self, name: str) -> int:
        """The partition that a name belongs to; -1: the topic is not there."""
        found = self._runtime.image.topics.get(self._topic)
        return -1 if found is None else partition_of(name, len(found.partitions))

    @property
    def incomplete(self) -> set[int]:
        """The partitions that do not have all that this broker kept of their names while it was alone."""
        return {self.index_of(name) for name in self._own.left}

    # --- which partitions

    def begin(self) -> None:
        self._runtime.spawn(self._run)

    async def _run(self) -> None:
        """Loads and forgets partitions as this broker leads them. Until cancelled."""
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
    def _states(self) -> list[PartitionState]:
        """The states of the topic's partitions, as far as this broker knows; empty if there is no such topic."""
        found = self._runtime.image.topics.get(self._topic)
        return [] if found is None else [each.state for each in found.partitions]

    @property
    def _local(self) -> Mapping[int, Partition]:
        topic = self._runtime.topics.get(self._topic)
        return {} if topic is None else topic.local

    def _left_behind(self) -> list[int]:
        """The partitions that are loaded, and which this broker does not lead in that epoch any more."""
        local = self._local
        return [index for index, table in self._tables.items() if not _leads(local.get(index), table.epoch)]

    def _new(self) -> list[Partition]:
        """The partitions that this broker leads, and which are not loaded."""
        known = self._tables.keys() | self._loading
        return [each for index, each in self._local.items() if each.role is Role.LEADER and index not in known]

    def _awaited(self) -> list[int]:
        """The partitions that this broker is to lead, as the image has it, and which are not loaded in that epoch."""
        return [
            index
            for index, state in enumerate(self._states)
            if state.leader == self._runtime.id
            and (index not in self._tables or self._tables[index].epoch != state.leader_epoch)
        ]

    def _forget(self, index: int) -> None:
        table = self._tables.pop(index)
        table.end(NotCoordinator("this broker does not lead it any more, or loads it anew"))
        self.give_up(lambda name: self.index_of(name) == index)

    def _failed(self, table: InternalTable, error: KrappyError) -> None:
        index = table.partition.index
        if self._tables.get(index) is table:
            self._runtime.report("coordinator_reloaded", partition=str(table.partition), error=str(error))
            self._troubled.add(index)
            self._forget(index)
            self._runtime.topics.changed.fire()

    async def _load(self, index: int, partition: Partition, epoch: int) -> None:
        try:
            while _leads(partition, epoch) and not self._runtime.stopped:
                if index in self._troubled:
                    self._troubled.discard(index)
                    await trio.sleep(RETRY_S)
                table = InternalTable(partition, self._keys, self._failed)
                try:
                    kept = await self.read(index, table, await self._rows(table))
                    if _leads(partition, epoch):
                        self._tables[index] = table
                        self.take(index, table, kept)
                        self._told.discard(index)
                        table.unreadable.tell(self._runtime, partition)
                    return
                except KrappyError as error:
                    self._tables.pop(index, None)
                    self._tell(index, error)
                    self._troubled.add(index)
        finally:
            self._loading.discard(index)
            self._runtime.topics.changed.fire()

    def _tell(self, index: int, error: KrappyError) -> None:
        """Reports once that a partition can't be loaded, in one line with other partitions: without a lease none can be
        loaded."""
        if index not in self._told:
            self._told.add(index)
            if not self._untold:
                self._runtime.spawn(self._tell_of_all)
            self._untold[index] = error

    async def _tell_of_all(self) -> None:
        await trio.sleep(TOGETHER_S)
        untold, self._untold = self._untold, {}
        first, error = next(iter(untold.items()))
        partition = f"{self._topic}-{first}"
        self._runtime.report("coordinator_not_loaded", partition=partition, partitions=len(untold), error=str(error))

    async def _rows(self, table: InternalTable) -> Rows:
        """The rows in the partition's view, once the view has all of the log. A write that was refused may be in the
        log, and be committed later: if its keys were not known, a name that was deleted would be there again. Raises as
        `wait_for_views`, StorageError."""
        partition = table.partition
        await partition.appender.idle()
        folded = await wait_for_views([partition], {partition.index: partition.end_offset - 1})
        number, rows = partition.number, Rows()
        for prefix in self._keys.prefixes:
            at: bytes | None
            at, end = key_range(number, prefix=prefix)
            while at is not None:
                stored, at = partition.views.keys(at, end, AT_ONCE)
                keys = [key[PREFIX_SIZE:] for key in stored]
                for key, entry in zip(keys, partition.views.get_many(number, keys), strict=True):
                    value, headers = (None, ()) if entry is None else unpack_entry(entry)[2:]
                    if value is not None and self._belongs(table, key):
                        rows.append((key, value, headers))
                        table.has(key)
                await trio.lowlevel.checkpoint()
                await folded.wait()
        return rows

    def _belongs(self, table: InternalTable, key: bytes) -> bool:
        try:
            name = self._keys.name_in(key)
            if self.index_of(name) != table.partition.index:
                raise StorageError(f"'{name:.100}' belongs to another partition")
        except StorageError as error:
            table.unreadable.add(key, error)
            return False
        return True


def _leads(partition: Partition | None, epoch: int) -> bool:
    return partition is not None and partition.role is Role.LEADER and partition.epoch == epoch
