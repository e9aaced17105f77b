"""The broker: it owns every partition of a data folder, and serves them to the handlers.

In a running broker only this package calls the store. Nothing here knows sockets or protocols.

    DATA/lock                    held by the running broker
    DATA/meta/                   RocksDB with WAL: catalog, groups, producer ids
    DATA/views/                  RocksDB without WAL: the latest value of each key
    DATA/topics/<topic>-<n>/     one log per partition
    DATA/reached                 how far each log has been on this disk
    DATA/ballast                 reserves disk space, for the work that frees space
    DATA/set-aside/              logs of replicas that have lost events, in a cluster
    DATA/backup/                 links to all of these, while a backup is copied
    DATA/restoring/              files of an unfinished restore: no broker starts while it is there
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import trio

from krappy.broker.access import Access
from krappy.broker.audit_topic import AuditTopic
from krappy.broker.coordinators import Coordinators
from krappy.broker.dynamic import DynamicSettings
from krappy.broker.groups.groups import GroupCoordinator
from krappy.broker.kafka_groups.coordinator import KafkaGroups
from krappy.broker.latest.ahead import Ahead
from krappy.broker.latest.latest import LatestTables
from krappy.broker.local_store import LocalStore
from krappy.broker.logouts import Logouts
from krappy.broker.meta_sync import MetaSync
from krappy.broker.partition.partition import Partition
from krappy.broker.replication.joining import check_alone
from krappy.broker.replication.replication import Replication
from krappy.broker.runtime import SHARE, Report, Runtime
from krappy.broker.settings import broker_settings
from krappy.broker.staging.parts import staging_parts
from krappy.broker.staging.staging import StagingCoordinator
from krappy.broker.tables import table
from krappy.broker.tables.snapshots import LeasedSnapshot, Snapshots
from krappy.broker.tables.view_keeper import ViewKeeper, open_views
from krappy.broker.topics.catalog import Catalog
from krappy.broker.topics.cluster_topics import ClusterTopicChanges
from krappy.broker.topics.internal_topics import JOBS, OFFSETS, SHARES, TRANSACTIONS, InternalTopics
from krappy.broker.topics.topic import Topic
from krappy.broker.topics.topic_changes import TopicChanges
from krappy.broker.transactions.participant import TransactionParticipant
from krappy.broker.transactions.parts import transaction_parts
from krappy.broker.transactions.producer_ids import ProducerIds
from krappy.broker.transactions.transactions import TransactionCoordinator
from krappy.broker.upkeep import backup, cluster_backup
from krappy.broker.upkeep.housekeeping import Housekeeper
from krappy.broker.upkeep.machine import Machine, make_folders, report_unclaimed
from krappy.broker.upkeep.room import Room
from krappy.broker.upkeep.scrubbing import Scrubber
from krappy.broker.users import Users
from krappy.core.cluster.placement import Placement
from krappy.core.security.principal import Principal
from krappy.errors import UnknownTopic
from krappy.ports import Bound, BrokerSetting, MovingPort, PayerPort, TransactionalSender
from krappy.ports.cluster import FetcherPort, LogPeersPort, MembershipPort
from krappy.settings.server import ServerConfig
from krappy.settings.topic_table import Changes
from krappy.store.catalog import LocalCatalog
from krappy.store.hold import check_whole
from krappy.store.lock import FolderLock
from krappy.store.meta import Meta
from krappy.store.view_numbers import ViewNumbers
from krappy.types import TopicPartition
from krappy.waiting import subscribed, wait_any

Moving = TypeVar("Moving", bound=MovingPort)


class LocalBroker(Runtime):
    """One data folder's broker. `async with Broker(config).running() ...` is in app.py; tests may drive it too."""

    def __init__(
        self,
        config: ServerConfig,
        report: Report | None = None,
        cluster: MembershipPort | None = None,
        fetcher: FetcherPort | None = None,
        peers: LogPeersPort | None = None,
    ) -> None:
        """`cluster`: None: this broker is alone. In a cluster `fetcher` copies what this broker follows, and `peers`
        asks other brokers for their part in transactions."""
        super().__init__(config, report)
        self.endpoints: Mapping[str, tuple[str, int]] = {}  # advertised host and port, by the listener's name
        self.http_address = ""  # HOST:PORT where the console listens
        self.latest = LatestTables(self, config.memory_bytes // SHARE, config.data, config.table_file_bytes)
        self.room = Room(self, self.latest.sets.drop_all)
        self.machine = Machine(self, self.room)
        self.snapshots = Snapshots(self)
        self.changes = (TopicChanges if cluster is None else ClusterTopicChanges)(
            *(self, self, self.room, self.latest),
            lambda: self.dynamic.topic_defaults,
            self._forget_positions,
        )
        self.names = self.changes.names
        self._peers = peers
        self.verifies = peers is not None
        self._audit_topic = AuditTopic(self, self.create_topic, self.alter_topic, peers)
        self.in_cluster = cluster is not None
        self.replication: Replication | None = None
        if cluster and fetcher and peers and isinstance(self.changes, ClusterTopicChanges):
            self.replication = Replication(self, self.changes, cluster, fetcher, peers)
        self.dynamic: DynamicSettings
        self.users: Users
        self.internal: InternalTopics
        self.producer_ids: ProducerIds
        self.groups: GroupCoordinator
        self.kafka_groups: KafkaGroups
        self.staging: StagingCoordinator
        self.transactions: TransactionCoordinator
        self.participant: TransactionParticipant
        self.housekeeper: Housekeeper
        self._housekeeping = trio.CancelScope()
        self._house_kept = trio.Event()
        self._house_kept.set()

    # --- lent to its partitions

    def check_producer(self, producer_id: int, sender: TransactionalSender | None) -> None:
        """Raises InvalidTransaction, UnknownProducer, UnknownProducerMapping. In a cluster `verify` is asked, too."""
        self.producer_ids.check(producer_id, transactional=sender is not None)
        self.transactions.check_sender(producer_id, sender)

    def check_transactional(self, producer_id: int, epoch: int, at: TopicPartition) -> None:
        """Raises InvalidTransaction, ProducerFenced. In a cluster `verify` was asked before."""
        if not self.verifies:
            self.transactions.check_write(producer_id, epoch, at)

    async def verify(self, sender: TransactionalSender, producer_id: int, epoch: int, at: TopicPartition) -> int:
        """As `TransactionParticipant.verify`."""
        return await self.participant.verify(sender, producer_id, epoch, at)

    def check_room(self, size: int) -> None:
        """Raises StorageError when the disk has no room for events of `size` bytes."""
        self.room.check(size)

    def may_read(self, topic: str, index: int, epoch: int) -> bool:
        """Whether no other broker can have become the leader of this partition since this leader epoch."""
        return self.replication is None or self.replication.may_read(topic, index, epoch)

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Opens the folder, reports that it has started, and runs until cancelled. Then it closes the files cleanly.

        Its own tasks are shielded from that cancellation, so that writes under way are finished. Opening the folder may
        take long after a crash: cancelling ends it, and so does `begin_stop`, which makes it raise ShuttingDown.
        """
        lock = FolderLock(self.config.data)
        self.close_folder()
        stop = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_cancelled, stop)
                await nursery.start(self._live, stop)
                task_status.started()
        finally:
            lock.release()

    async def _until_cancelled(self, stop: trio.Event) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.begin_stop()
            stop.set()

    async def _live(self, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope(shield=True), self.syncing():
            async with trio.open_nursery() as nursery:
                self.begin(nursery)
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
        check_whole(data, catalog=self.replication is None)
        await self.room.look()
        self.reached = await self.in_thread(partial(make_folders, data))
        await self.room.look()  # at the folder of the logs, which did not exist before the first start
        await self.in_thread(partial(shutil.rmtree, data / backup.FOLDER, ignore_errors=True))
        self.meta = Meta(data / "meta", keep=self.fsync)
        self._meta_sync = MetaSync(self)
        local = await self.in_thread(lambda: LocalCatalog(self.meta, tell=self._tell_of_migration))
        if self.replication is None:
            await self._open_alone(local)
        else:
            await self._open_in_cluster(local, self.replication)
        self.producer_ids = ProducerIds(self)
        await self.producer_ids.open()
        self.groups = GroupCoordinator(self, self.create_topic, partial(self.coordinators.keeper, SHARES), self._peers)
        self.coordinators.loaded[SHARES] = self.groups.storage
        self.kafka_groups = KafkaGroups(
            self, self.overrides("groups"), self.groups, self.internal, self.latest, replicated=self.in_cluster
        )
        self.coordinators.loaded[OFFSETS] = self.kafka_groups.store
        self.groups.kafka = self.kafka_groups.native
        await self.groups.open()
        await self.kafka_groups.open()
        for dead in self.catalog.deleting():
            self.check_taking()
            await self.changes.finish_deletion(dead)
        self.transactions, self.participant = transaction_parts(
            *(self, self.coordinators, self.kafka_groups, self.producer_ids, self._peers)
        )
        self.staging = staging_parts(
            *(self, self.producer_ids, self.topic_for_producer, self.room.check),
            *(self.transactions.markers, self._peers),
        )
        self.coordinators.loaded[JOBS] = self.staging.keeper
        await self.staging.open()
        self.coordinators.loaded[TRANSACTIONS] = self.transactions.keeper
        await self.transactions.open()
        self.housekeeper = Housekeeper(self, self.changes, self.staging, self.latest)
        if self.kafka_groups.groups:
            self.internal.use(OFFSETS)
        if not self.in_cluster and self.transactions.list():
            self.internal.use(TRANSACTIONS)
        for partition in self.topics.local():
            partition.applier.start()
        await self.dynamic.take_static()
        await self.users.open()
        if some := [topic.name for topic in self.topics.values() if topic.forgets_by_old_default]:
            text = "events expire after 7 days, an earlier default for new topics: see `krappy topic alter --retention`"
            self.report("old_default_retention", topics=len(some), first=", ".join(some[:10]), text=text)
        self._house_kept = trio.Event()
        self.spawn(self._keep_house)
        self.spawn(self.authorizer.follow)
        self.opened = True
        if self.replication is not None:
            self.replication.begin()

    async def _open_alone(self, local: LocalCatalog) -> None:
        await self.in_thread(lambda: check_alone(self.config.data, self.meta))
        self.store = store = LocalStore(local.tree, self.in_thread)
        self.cluster_id = local.cluster_id
        self.catalog = Catalog(store, local.numbers, self.in_thread, self.id)
        await self.catalog.open()
        await self.catalog.forget_unmade()
        listed = self.catalog.list()
        await self._open_views(local.numbers)
        await self.in_thread(lambda: report_unclaimed(self))
        if lost := self.meta.lost:
            self.report("catalog_lost", changes=lost)
            await self.catalog.pass_over(self.meta, lost)
        store.control()
        await self.catalog.register(self.endpoints, self.config.rack or None, self.started_ms)
        self._open_settings()
        defaults = self.dynamic.topic_defaults
        topics = [(Topic(stored, self.catalog.image(stored.name), defaults), stored) for stored in listed]
        await self.changes.open_partitions(topics, new=False)
        for topic, stored in topics:
            self.topics.add(topic)
            self.names.add(stored.name)

    async def _open_in_cluster(self, local: LocalCatalog, replication: Replication) -> None:
        """Opens what the cluster has assigned to this broker, and registers."""
        self.store = replication.cluster
        self.cluster_id = await replication.enter(local)
        self.catalog = Catalog(self.store, local.numbers, self.in_thread, self.id)
        await self.catalog.open()
        if lost := self.meta.lost:
            self.report("catalog_lost", changes=lost)
        await self._open_views(local.numbers)
        self._open_settings()
        self.spawn(self.dynamic.follow)
        await replication.open(self.endpoints, self.internal)

    async def _open_views(self, numbers: ViewNumbers) -> None:
        sizes = (self.config.view_cache_bytes, self.config.view_memtable_bytes)
        folder = self.config.data / "views"
        self.views, damaged = await self.in_thread(lambda: open_views(folder, sizes, numbers))
        if damaged:
            self.report("views_damaged", error=damaged)

    def _open_settings(self) -> None:
        self.client_quotas.open()
        self.dynamic = DynamicSettings(self, self.overrides("brokers"), self.changes.locks)
        self.users = Users(self, self.overrides("users"))
        self.logouts = Logouts(self)
        self.internal = InternalTopics(self.cluster_id, self.id, self.topics.changed)
        changes = self.changes if isinstance(self.changes, ClusterTopicChanges) else None
        self.coordinators = Coordinators(self, self.internal, changes)

    def _tell_of_migration(self, records: int) -> None:
        text = "the catalog is converted to this version's format; earlier versions can't open it any more"
        self.report("catalog_migrated", records=records, text=text)

    async def _keep_house(self) -> None:
        try:
            with self._housekeeping:
                async with trio.open_nursery() as nursery:
                    keeper = ViewKeeper(self, self.changes.locks, self.machine, self.snapshots)
                    parts = (self.housekeeper, keeper, Scrubber(self), Ahead(self, self.latest), self._audit_topic)
                    for run in (*(part.run for part in parts), self._meta_sync.mend, self.room.watch):
                        nursery.start_soon(self._guarded, run, ())  # if one fails, the others go on
        finally:
            self._house_kept.set()

    async def _close(self) -> None:
        self.begin_stop()
        await self._audit_topic.finish()
        if self.replication is not None:
            self.replication.end()
            await self.replication.rest()
        self._housekeeping.cancel()
        await self._house_kept.wait()  # housekeeping may be flushing or cleaning what is about to be closed
        async with self.changes.locks.everything():  # a deletion may be using the files as well
            await self.changes.bury_all()
            await self._close_all()

    async def _close_all(self) -> None:
        self.snapshots.close_all()
        for part in ("staging", "transactions", "groups", "kafka_groups"):
            if hasattr(self, part):
                await getattr(self, part).close()
        for partition in self.topics.local():
            partition.appender.close()
        async with trio.open_nursery() as nursery:  # many at a time: each waits for the disk
            for partition in self.topics.local():
                nursery.start_soon(self.attempt, str(partition), partition.close())
        for part in ("views", "meta"):
            if hasattr(self, part):
                await self.attempt(part, self.in_thread(getattr(self, part).close))

    async def hold_backup(self) -> backup.Hold:
        """Links all files as of now into a folder, to be copied from there. Raises StorageError, ShuttingDown."""
        return await backup.take(self, self.changes.locks, self.staging.files)

    def new_backup(self) -> cluster_backup.BegunBackup | None:  # a cluster's; None: this broker is alone
        return cluster_backup.BegunBackup(self, self.changes.locks, self.coordinators) if self.in_cluster else None

    async def leave(self) -> None:
        """In a cluster, before the broker stops: others take over what it leads."""
        if self.replication is not None and self.opened:
            await self.replication.leave()

    # --- topics

    def topic(self, name: str) -> Topic:
        """Raises UnknownTopic."""
        return self.topics.find(name)

    async def coordinator(self, topic: str, key: str) -> int:
        """The id of the broker that coordinates `key`: a group (`__consumer_offsets`) or a transactional id
        (`__transaction_state`); −1 if that broker is away. From now on that internal topic is listed."""
        return await self.coordinators.find(topic, key)

    def access(self, principal: Principal | None = None, payer: PayerPort | None = None) -> Access:
        """The door for a principal; None: for the broker itself. `payer`: who pays for what has a quota."""
        return Access(self, self.authorizer.guard(principal), payer)

    async def _forget_positions(self, topic: str, id: bytes) -> None:
        """Deletes all groups' positions in this topic, durably. Raises StorageError."""
        await self.kafka_groups.forget_topic(topic, id)
        await self.groups.forget_topic(topic, id)

    async def topic_for_producer(self, name: str) -> Topic:
        """The topic, created with default settings if it is absent and auto_create_topics is on. Raises UnknownTopic,
        InvalidTopic, …"""
        if name not in self.topics and self.config.auto_create_topics:
            await self.create_topic(name, self.config.default_partitions, {}, if_absent=True)
        if name not in self.topics:
            raise UnknownTopic(f"there is no topic '{name}'; create it with `krappy topic create {name}`", topic=name)
        return self.topic(name)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Any],
        *,
        if_absent: bool = False,
        alike: bool = False,
        own: bool = False,
        replicas: Placement | None = None,
    ) -> tuple[Topic, bool]:
        """Creates a topic durably. Returns the topic, and whether it was created now. `alike`, `own`: as in
        `TopicNames.check`. `replicas`: the brokers of each partition. Raises TopicExists, InvalidTopic, …"""
        how = {"if_absent": if_absent, "alike": alike, "own": own}
        with self.audit.change("topic", [name], self.catalog.told) as told:
            made, new = await self.changes.create(name, partitions, config, **how, replicas=replicas)
            told.made = new and not own
        return made, new

    async def place(self, partitions: int, factor: int) -> Placement:
        """The brokers of each partition of a new topic. Raises InvalidReplicationFactor, RequestTimeout."""
        return await self.changes.place(partitions, factor)

    async def alter_topic(
        self, name: str, config: Changes | None, partitions: int | None, replicas: Placement | None = None
    ) -> None:
        """Checks everything, then adds partitions (`partitions`: the new total; None: as before), then changes settings
        (a value None: back to the default). After a StorageError the partitions may be there and the settings
        unchanged."""
        await self.changes.alter(name, config, partitions, replicas)

    async def delete_topic(self, name: str, id: bytes | None = None) -> None:
        """Deletes a topic durably; its files soon after the return. `id`: the topic's id; a topic of this name with
        another id stays. Raises UnknownTopic."""
        await self.changes.delete(name, id)

    def settings(self, advertised: str) -> list[BrokerSetting]:
        """This broker's settings for Kafka's tools. `advertised`: the HOST:PORT that the asking client was told."""
        return broker_settings(self.dynamic.static, advertised)

    async def log_dir(self) -> tuple[str, int, int]:
        """(the folder of the logs, the size of its file system in bytes, free bytes). Raises StorageError."""
        return await self.machine.log_dir()

    async def new_producer_id(self) -> int:
        return await self.producer_ids.new()

    # --- for handlers

    async def wait_for_moves(
        self,
        parts: Sequence[Moving],
        ready: Callable[[], bool],
        seconds: float,
        *,
        topics: bool = False,
        told: Callable[[Moving], None] | None = None,
    ) -> bool:
        """Waits until `ready()`, which is asked again whenever one of the `parts` (partitions) has moved. False after
        `seconds`. True as well when the broker begins to stop.

        `topics`: ask also when a topic was created, deleted or changed. `told(part)` is called for each part that has
        moved, before `ready` is asked: so `ready` need not look at all parts.
        """
        signals = [*{id(part.moved): part.moved for part in parts}.values(), self.stopping, *self.authorizer.signals]
        if topics:
            signals.append(self.topics.changed)
        with subscribed([] if told is None else [(each.moved, partial(told, each)) for each in parts]):
            return await wait_any(signals, lambda: self.stopped or ready(), seconds)

    async def wait_for_views(self, partitions: Sequence[Partition], least: table.Least = None) -> table.Folded:
        return await table.wait_for_views(partitions, least)

    def scan(
        self,
        partitions: list[Partition],
        prefix: Bound,
        start: Bound,
        end: Bound,
        *,
        tombstones: bool,
        whole: bool = False,
    ) -> table.TableScan:
        chosen = table.Chosen(prefix, start, end)
        return table.TableScan(self, partitions, chosen, tombstones=tombstones, whole=whole)

    def watch(
        self,
        partitions: list[Partition],
        prefix: Bound,
        start: Bound,
        end: Bound,
        *,
        tombstones: bool,
        grows_with: Mapping[int, Partition] = MappingProxyType({}),
        whole: bool = False,
    ) -> table.TableWatch:
        chosen = table.Chosen(prefix, start, end)
        return table.TableWatch(self, partitions, chosen, tombstones=tombstones, grows_with=grows_with, whole=whole)

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
        """As `scan`, held under an id, so that every connection can read it."""
        chosen = table.Chosen(prefix, start, end)
        return self.snapshots.open(partitions, chosen, ttl_ms, tombstones=tombstones, whole=whole)

    async def history(
        self, partition: Partition, key: bytes, offset: int, max_records: int, max_bytes: int
    ) -> tuple[list[bytes], int | None]:
        return await table.history(partition, key, offset, max_records, max_bytes)
