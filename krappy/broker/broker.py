"""The broker: owns every partition of a data folder and answers for it to the handlers.

It is the only caller of the store. Nothing here knows sockets or protocols.

    DATA/lock                    held by the running broker
    DATA/meta/                   RocksDB with WAL: catalog, groups, producer ids
    DATA/views/                  RocksDB without WAL: the latest value of each key
    DATA/topics/<topic>-<n>/     one log per partition
    DATA/ballast                 holds room on the disk, for what makes room
    DATA/backup/                 links to all of these, while a backup is copied
    DATA/restoring/              what a restore has not put into its place yet: no broker starts beside it
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import trio

from krappy.broker import backup, deletion, table
from krappy.broker.access import Access
from krappy.broker.ahead import Ahead
from krappy.broker.clock import Clock
from krappy.broker.dynamic import DISK_THREADS, DynamicSettings
from krappy.broker.groups import GroupCoordinator
from krappy.broker.housekeeping import Housekeeper
from krappy.broker.internal_topics import OFFSETS, TRANSACTIONS, InternalTopics
from krappy.broker.kafka_groups.coordinator import KafkaGroups
from krappy.broker.latest import LatestTables
from krappy.broker.machine import Machine
from krappy.broker.meta_sync import MetaSync
from krappy.broker.partition import Partition
from krappy.broker.producer_ids import ProducerIds
from krappy.broker.room import Room
from krappy.broker.settings import BrokerSetting, broker_settings
from krappy.broker.snapshots import LeasedSnapshot, Snapshots
from krappy.broker.staging import StagingCoordinator
from krappy.broker.table_topic import TableTopic, table_topic
from krappy.broker.topic import Topic
from krappy.broker.topic_changes import TopicChanges
from krappy.broker.topic_names import TopicNames
from krappy.broker.transactions import TransactionCoordinator
from krappy.broker.view_keeper import ViewKeeper, open_views
from krappy.config import ServerConfig
from krappy.core.cluster.image import Image
from krappy.core.latest import table_of
from krappy.errors import KrappyError, ShuttingDown, StorageError, UnknownTopic
from krappy.measures import StoreMeasures
from krappy.ports import Bound
from krappy.store import identity
from krappy.store.catalog import Catalog
from krappy.store.disk import OS_DISK
from krappy.store.group_offsets import GroupOffsets
from krappy.store.groups import GroupStore
from krappy.store.hold import check_whole
from krappy.store.lock import FolderLock
from krappy.store.meta import Meta
from krappy.store.overrides import OverrideStore
from krappy.store.privacy import close_to_others
from krappy.store.staging import StagedFiles, StagingStore
from krappy.store.transactions import TransactionStore
from krappy.store.views import Views
from krappy.topic_settings import Changes
from krappy.types import TopicPartition
from krappy.waiting import Later, Signal, subscribed, wait_any

Report = Callable[..., None]
T = TypeVar("T")
SHARE = 8  # the part of the memory's budget that each of the broker's own stores may take beside it
VERSION = metadata.version("krappy")


class Broker:
    """One data folder's broker. `async with Broker(config).running() ...` is in app.py; tests may drive it too."""

    def __init__(self, config: ServerConfig, report: Report | None = None) -> None:
        self.config = config
        self.id = config.broker_id
        self.version = VERSION
        self.endpoints: Mapping[str, tuple[str, int]] = {}  # where clients find it, by the listener's name
        self.fsync = config.durability == "fsync"
        self.disk_limiter = trio.CapacityLimiter(DISK_THREADS)  # of threads that wait for nothing but the disk
        self.cleaner_limiter = trio.CapacityLimiter(1)
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[bytes, Topic] = {}  # the same, by their 16 bytes
        self.dynamic: DynamicSettings
        self.internal: InternalTopics
        self.names = TopicNames(config.latest_alias)
        self.topics_changed = Signal()
        self.measures = StoreMeasures(kept_limit=config.memory_bytes // SHARE)
        self.machine = Machine(self)
        self.room = Room(self)
        self.clock = Clock()
        self.started_ms = self.now_ms()
        self.opened = False  # everything is recovered, and nothing closed yet
        self.stopping = Signal()
        self.stopped = False
        self.groups: GroupCoordinator
        self.kafka_groups: KafkaGroups
        self.transactions: TransactionCoordinator
        self.staging: StagingCoordinator
        self.producer_ids: ProducerIds
        self.views: Views
        self.meta: Meta
        self.catalog: Catalog
        self.scans: set[table.TableScan] = set()
        self.snapshots = Snapshots(self)
        self.dropped_views: list[int] = []  # whose space on disk housekeeping gives back
        self.latest = LatestTables(self, config.memory_bytes // SHARE, config.data, config.table_file_bytes)
        self._report = report or (lambda event, **facts: None)
        self._nursery: trio.Nursery | None = None
        self.changes = TopicChanges(self)
        self._meta_sync = MetaSync(self)
        self.shrinking = trio.Lock()  # held while events are taken out of a log; topics' locks are taken after it
        self.counting = trio.CapacityLimiter(1)  # of those who look through whole views
        self.decisions = backup.Gate()  # closed while a backup is taken
        self._housekeeping = trio.CancelScope()
        self._house_kept = trio.Event()
        self._house_kept.set()

    # --- services to its parts

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def spawn(self, run: Callable[..., Any], *args: Any) -> None:
        assert self._nursery is not None, "the broker is not running"
        self._nursery.start_soon(self._guarded, run, args)

    async def _guarded(self, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A fault in one background task is reported with its traceback and ends that task, not the broker."""
        try:
            await run(*args)
        except Exception:
            self._report("internal_error", task=getattr(run, "__qualname__", str(run)), exc_info=True)

    def report(self, event: str, **facts: Any) -> None:
        self._report(event, **facts)

    def check_producer(self, producer_id: int, *, transactional: bool) -> None:
        """Raises InvalidTransaction, UnknownProducer."""
        self.producer_ids.check(producer_id, transactional=transactional)

    def check_transactional(self, producer_id: int, epoch: int, at: TopicPartition) -> None:
        """Raises InvalidTransaction, ProducerFenced."""
        self.transactions.check_write(producer_id, epoch, at)

    def check_room(self, size: int) -> None:
        """Raises StorageError when the disk has no room for events of so many bytes."""
        self.room.check(size)

    async def sync_meta(self, take_back: Callable[[], None] | None = None) -> None:
        """Returns once everything written to the meta database so far is on disk; one sync serves all callers.

        `take_back`: of `Meta.change`, called when that can't be said: the sync failed, or nobody waits for it any more.
        """
        try:
            await self._meta_sync.wait()
        except BaseException:
            if take_back is not None:
                take_back()
            raise

    def meta_synced(self) -> Later[None]:
        """As `sync_meta`, without a task that waits."""
        return self._meta_sync.later()

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Opens the folder, reports itself started, and lives until cancelled; then leaves the files clean.

        Its own tasks are shielded from that cancellation: writes under way are finished, not torn. While it opens the
        folder, which may take long after a crash, cancelling and `begin_stop` end that, the latter by ShuttingDown.
        """
        lock = FolderLock(self.config.data)
        self._close_folder()
        stop = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_cancelled, stop)
                await nursery.start(self._live, stop)
                task_status.started()
        finally:
            lock.release()

    def _close_folder(self) -> None:
        folder = self.config.data
        try:
            before = close_to_others(folder)
        except OSError as error:
            self.report("data_folder_open_to_others", folder=str(folder), error=str(error))
        else:
            if before is not None:
                self.report("data_folder_closed_to_others", folder=str(folder), mode_before=f"{before:04o}")

    async def _until_cancelled(self, stop: trio.Event) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.begin_stop()
            stop.set()

    async def _live(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._open()
                    self.check_taking()
                    task_status.started()
                    await stop.wait()
                finally:
                    await self._close()
                nursery.cancel_scope.cancel()

    async def _open(self) -> None:
        data = self.config.data
        check_whole(data)
        await self.room.look()
        OS_DISK.mkdir(data / "topics")
        await self._in_thread(partial(shutil.rmtree, data / backup.FOLDER, ignore_errors=True))
        self.meta = Meta(data / "meta", keep=self.fsync)
        self.catalog = await self._in_thread(lambda: Catalog(self.meta, tell=self._tell_of_migration))
        sizes = (self.config.view_cache_bytes, self.config.view_memtable_bytes)
        numbers = [number for stored in self.catalog.list() for number in stored.numbers]
        self.views, damaged = await self._in_thread(lambda: open_views(data / "views", sizes, numbers))
        if damaged:
            self.report("views_damaged", error=damaged)
        await self._in_thread(self._check_folders)
        await self._in_thread(lambda: self.catalog.register(self.id, self.endpoints, self.config.rack or None))
        self.dynamic = DynamicSettings(self, OverrideStore(self.catalog.tree, "brokers"), self.changes.locks)
        self.internal = InternalTopics(self.catalog.cluster_id, self.id, self.topics_changed)
        defaults = self.dynamic.topic_defaults
        topics = [(Topic(stored, self.catalog.image(stored.name), defaults), stored) for stored in self.catalog.list()]
        await self.changes.open_partitions(topics, new=False)
        for topic, stored in topics:
            self.topics[stored.name] = self.topics_by_id[stored.id] = topic
            self.names.add(stored.name)
        self.producer_ids = ProducerIds(self)
        await self.producer_ids.open()
        self.groups = GroupCoordinator(self, GroupStore(self.meta))
        await self.groups.open()
        self.kafka_groups = KafkaGroups(self, GroupOffsets(self.meta), OverrideStore(self.catalog.tree, "groups"))
        await self.kafka_groups.open()
        for dead in self.catalog.deleting():
            self.check_taking()
            await deletion.try_to_finish(self, dead)
        self.staging = StagingCoordinator(self, StagingStore(self.meta), StagedFiles(data / "staging"))
        await self.staging.open()
        self.transactions = TransactionCoordinator(
            self, TransactionStore(self.meta), self.config.transaction_max_timeout_ms
        )
        await self.transactions.open()
        if self.kafka_groups.groups:
            self.internal.use(OFFSETS)
        if self.transactions.list():
            self.internal.use(TRANSACTIONS)
        for topic in self.topics.values():
            for partition in topic.local.values():
                partition.applier.start()
        await self.dynamic.take_static()
        if some := [topic.name for topic in self.topics.values() if topic.forgets_by_old_default]:
            text = (
                "events go after 7 days, the default when these topics were made; see `krappy topic alter --retention`"
            )
            self.report("old_default_retention", topics=len(some), first=", ".join(some[:10]), text=text)
        self._house_kept = trio.Event()
        self.spawn(self._keep_house)
        self.opened = True

    def _tell_of_migration(self, records: int) -> None:
        text = "the catalog becomes one of this version's format; versions before it do not open it any more"
        self.report("catalog_migrated", records=records, text=text)

    def _check_folders(self) -> None:
        """Tells of events that no topic claims, and passes over the numbers and ids that a damaged catalog may have
        given to their topics."""
        topics = [*self.catalog.list(), *self.catalog.deleting()]
        known = {f"{topic.name}-{index}" for topic in topics for index in range(len(topic.numbers))}
        for folder in identity.unclaimed(self.config.data / "topics", known):
            self.report("folder_unclaimed", folder=str(folder), topic_id=identity.owner(folder) or "unknown")
        if lost := self.meta.lost:
            self.report("catalog_lost", changes=lost)
            self.catalog.pass_over(lost, self.views.highest_number())

    async def _keep_house(self) -> None:
        try:
            with self._housekeeping:
                async with trio.open_nursery() as nursery:
                    parts = (Housekeeper(self), ViewKeeper(self), Ahead(self, self.latest))
                    for run in (*(part.run for part in parts), self._meta_sync.mend, self.room.watch):
                        nursery.start_soon(self._guarded, run, ())  # the others go on without it
        finally:
            self._house_kept.set()

    def folder_of(self, topic: str, index: int) -> Path:
        return self.config.data / "topics" / f"{topic}-{index}"

    def begin_stop(self) -> None:
        """From here on nothing waits for events any more and nothing new is taken."""
        if not self.stopped:
            self.stopped = True
            self.stopping.fire()

    async def _close(self) -> None:
        self.begin_stop()
        self._housekeeping.cancel()
        await self._house_kept.wait()  # it may be flushing or cleaning what is about to be closed
        async with self.changes.locks.everything():  # and so may a deletion
            await self.changes.bury_all()
            await self._close_all()

    async def _close_all(self) -> None:
        self.snapshots.close_all()
        if hasattr(self, "staging"):
            await self.staging.close()
        if hasattr(self, "transactions"):
            await self.transactions.close()
        if hasattr(self, "groups"):
            await self.groups.close()
        if hasattr(self, "kafka_groups"):
            await self.kafka_groups.close()
        for topic in self.topics.values():
            for partition in topic.local.values():
                partition.appender.close()
        async with trio.open_nursery() as nursery:  # many at a time: each waits for the disk on its own
            for topic in self.topics.values():
                for partition in topic.local.values():
                    nursery.start_soon(self.attempt, str(partition), partition.close())
        for part in ("views", "meta"):
            if hasattr(self, part):
                await self.attempt(part, self._in_thread(getattr(self, part).close))

    async def attempt(self, part: str, closing: Awaitable[Any]) -> None:
        """What can't be left clean is made good on the next open; the rest is closed all the same."""
        try:
            await closing
        except KrappyError as error:
            self.report("close_failed", part=part, error=str(error))

    async def hold_backup(self) -> backup.Hold:
        """The files of this moment, linked aside to be copied. Raises StorageError, ShuttingDown."""
        # In this order: a compaction under way may take minutes, for which no topic should have to wait to be made.
        async with self.shrinking, self.changes.locks.everything():
            self.check_taking()
            return await backup.take(self)

    # --- topics

    @property
    def cluster_id(self) -> str:
        return self.catalog.cluster_id

    def topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return found

    def led(self, at: TopicPartition) -> Partition:
        """A partition that this broker leads. Raises NotLeader, UnknownTopic, UnknownPartition."""
        return self.topic(at.topic).led(at.partition)

    def coordinator(self, topic: str, key: str) -> int:
        """The broker that keeps what `key` has in an internal topic. That topic is used from now on."""
        self.internal.use(topic)
        return self.id

    @property
    def image(self) -> Image:
        """The cluster as this broker knows it."""
        return self.catalog.tree.image

    def access(self) -> Access:
        """The door for one connection."""
        return Access(self)

    def table_topic(self, name: str, state: dict[str, Any]) -> TableTopic | None:
        """`TOPIC@latest`, or None. `state`: of the connection that asks."""
        return table_topic(self.topics, self.latest, name, state, self.config.latest_alias)

    def table_of(self, name: str) -> str | None:
        """The topic, if there is one, whose table this name stands for; None for a topic's own name, and any other."""
        return None if name in self.topics else table_of(name, self.config.latest_alias)

    async def topic_for_producer(self, name: str) -> Topic:
        """The topic, created with default settings when the broker allows that (auto_create_topics)."""
        if name not in self.topics and self.config.auto_create_topics:
            await self.create_topic(name, self.config.default_partitions, {}, if_absent=True)
        if name not in self.topics:
            raise UnknownTopic(f"there is no topic '{name}'; create it with `krappy topic create {name}`", topic=name)
        return self.topic(name)

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, Any], *, if_absent: bool = False, alike: bool = False
    ) -> tuple[Topic, bool]:
        """Creates a topic durably. (topic, whether it was created now). Raises TopicExists, InvalidTopic, …

        `alike`: its name may be like another's (topic_names.py).
        """
        return await self.changes.create(name, partitions, config, if_absent=if_absent, alike=alike)

    async def alter_topic(self, name: str, config: Changes | None, partitions: int | None) -> None:
        """Changes settings (None: back to the default) and adds partitions. All or nothing."""
        await self.changes.alter(name, config, partitions)

    async def delete_topic(self, name: str, uuid: bytes | None = None) -> None:
        """When it returns the topic is gone for good; what its files take on the disk is given back soon.

        `uuid`: the one that is meant, which may not be who has the name when its turn comes. Raises UnknownTopic.
        """
        await self.changes.delete(name, uuid)

    def settings(self, advertised: str) -> list[BrokerSetting]:
        """This broker's settings for Kafka's tools. `advertised`: the HOST:PORT that the asking client was told."""
        return broker_settings(self.dynamic.static, advertised)

    async def log_dir(self) -> tuple[str, int, int]:
        """(the folder of the logs, bytes that its file system has, bytes that are free in it). Raises StorageError."""
        folder = self.config.data / "topics"
        try:
            usage = await self._in_thread(lambda: shutil.disk_usage(folder))
        except OSError as error:
            raise StorageError(f"{folder}: {error}") from error
        return str(folder.absolute()), usage.total, usage.free

    async def new_producer_id(self) -> int:
        return await self.producer_ids.new()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self.disk_limiter)

    # --- for handlers

    async def wait_for_moves(
        self, parts: Sequence[Any], ready: Callable[[], bool], seconds: float, *, topics: bool = False, told: Any = None
    ) -> bool:
        """Waits until `ready()`, which is asked again whenever one of the parts has moved. False after `seconds`.

        `topics`: asked also when any topic was made, deleted or got partitions. `told(part)` hears before that
        which one has moved, so that `ready` need not look at all of them.
        """
        signals = [*{id(part.moved): part.moved for part in parts}.values(), self.stopping]
        if topics:
            signals.append(self.topics_changed)
        with subscribed([] if told is None else [(each.moved, partial(told, each)) for each in parts]):
            return await wait_any(signals, lambda: self.stopped or ready(), seconds)

    async def wait_for_views(self, partitions: Sequence[Partition], min_offset: int | None = None) -> table.Folded:
        return await table.wait_for_views(partitions, min_offset)

    def scan(
        self, partitions: list[Partition], *chosen: Bound, tombstones: bool, whole: bool = False
    ) -> table.TableScan:
        """A snapshot of these partitions' tables: prefix, start, end. The caller has waited for the views."""
        return table.TableScan(self, partitions, table.Chosen(*chosen), tombstones=tombstones, whole=whole)

    def watch(
        self,
        partitions: list[Partition],
        *chosen: Bound,
        tombstones: bool,
        grows_with: Mapping[int, Partition] = MappingProxyType({}),
        whole: bool = False,
    ) -> table.TableWatch:
        wanted = table.Chosen(*chosen)
        return table.TableWatch(self, partitions, wanted, tombstones=tombstones, grows_with=grows_with, whole=whole)

    def open_snapshot(
        self,
        partitions: list[Partition],
        prefix: Bound,
        start: Bound,
        end: Bound,
        ttl_ms: int,
        *,
        tombstones: bool,
        whole: bool = False,
    ) -> LeasedSnapshot:
        """As `scan`, held under an id for every connection."""
        chosen = table.Chosen(prefix, start, end)
        return self.snapshots.open(partitions, chosen, ttl_ms, tombstones=tombstones, whole=whole)

    async def history(
        self, partition: Partition, key: bytes, offset: int, max_records: int, max_bytes: int
    ) -> tuple[list[bytes], int | None]:
        return await table.history(partition, key, offset, max_records, max_bytes)

    def check_taking(self) -> None:
        if self.stopped:
            raise ShuttingDown("the broker is shutting down")
