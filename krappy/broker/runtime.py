"""What a broker lends to its parts: its clock, its tasks and threads, its reports, its topics and stores.

A part is given the runtime and the other parts that it works with. None is given the broker itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar, TypeVarTuple

import trio

from krappy.broker.audit import Audit
from krappy.broker.authorizer import Authorizer
from krappy.broker.client_quotas import ClientQuotas
from krappy.broker.clock import Clock
from krappy.broker.gate import Gate
from krappy.broker.hang_limit import HangLimit
from krappy.broker.meta_sync import MetaSync
from krappy.broker.name_locks import NameLocks
from krappy.broker.overrides import OverrideStore
from krappy.broker.stillness import Stillness
from krappy.broker.sync_threads import SyncThreads
from krappy.broker.topics.catalog import Catalog
from krappy.broker.topics.topics import Topics
from krappy.broker.upkeep.room import Room
from krappy.core.cluster.image import Image
from krappy.core.cluster.paths import Kind
from krappy.core.throttle import ReplicationQuotas
from krappy.errors import KrappyError, ShuttingDown
from krappy.measures import StoreMeasures
from krappy.ports.store import Store
from krappy.settings.server import ServerConfig
from krappy.store.meta import Meta
from krappy.store.privacy import close_to_others
from krappy.store.reached import ReachedFile
from krappy.store.views import Views
from krappy.version import VERSION
from krappy.waiting import Later, Signal, wait_any

Report = Callable[..., None]
T = TypeVar("T")
Args = TypeVarTuple("Args")
SHARE = 8  # each of the broker's own caches may take 1/SHARE of `memory_bytes`, in addition to it
DISK_THREADS = 8
CLEANERS = 8  # compactions that may be under way: one, and some whose disk hangs


class OpenScan(Protocol):
    """An open scan of a table. `used_ms`: when it was last asked for a page (steady ms)."""

    used_ms: int

    def close(self) -> None: ...


class Runtime:
    """`config`: the settings in force; replaced by each change. `stopping`: fired when the broker begins to stop."""

    def __init__(self, config: ServerConfig, report: Report | None = None) -> None:
        self.config = config
        self.id = config.broker_id
        self.version = VERSION
        self.fsync = config.durability == "fsync"
        self.syncs: SyncThreads | None = None  # while it runs, with durability "fsync"
        self.clock = Clock()
        self.started_ms = self.now_ms()
        self.measures = StoreMeasures(kept_limit=config.memory_bytes // SHARE)
        self.settings_changed = Signal()
        self.disk_threads = HangLimit(DISK_THREADS)
        self.disk_limiter = self.disk_threads.limiter  # of threads that wait only for the disk
        self.cleaner_limiter = trio.CapacityLimiter(CLEANERS)
        self.counting = trio.CapacityLimiter(1)  # tasks that read whole views
        # A topic's is held while events are removed from its logs. Take it before the topic's own lock.
        self.shrinking = NameLocks()
        self.quotas = ReplicationQuotas()
        self.decisions = Gate()  # closed while a backup is taken: no transaction or job is decided meanwhile
        self.stopping = Signal()
        self.stopped = False
        self.in_cluster = False
        self.opened = False  # everything is recovered, and nothing closed yet
        self.stillness = Stillness()
        self.room: Room
        self.topics = Topics(config.latest_alias, config.audit_topic)
        self.meta: Meta
        self.views: Views
        self.reached: ReachedFile
        self.cluster_id: str
        self.store: Store
        self.catalog: Catalog
        self.audit = Audit(self)
        self.authorizer = Authorizer(self)
        self.client_quotas = ClientQuotas(self)
        self.scans: set[OpenScan] = set()
        self.dropped_views: list[int] = []  # their numbers; housekeeping frees their disk space
        self._meta_sync: MetaSync
        self._report = report or (lambda event, **facts: None)
        self._nursery: trio.Nursery | None = None

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def later_ms(self) -> int:
        return self.clock.later_ms()

    @property
    def lag_ms(self) -> float:
        return self.config.replica_lag_time_max_ms

    def begin(self, nursery: trio.Nursery) -> None:
        """From now on its tasks run in this nursery."""
        self._nursery = nursery
        self.spawn(self.disk_threads.run)

    def spawn(self, run: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        assert self._nursery is not None, "the broker is not running"
        self._nursery.start_soon(self._guarded, run, args)

    async def _guarded(self, run: Callable[[*Args], Awaitable[object]], args: tuple[*Args]) -> None:
        """A fault in one background task is reported with its traceback and ends that task, not the broker."""
        try:
            await run(*args)
        except Exception:
            self._report("internal_error", task=getattr(run, "__qualname__", str(run)), exc_info=True)

    def report(self, event: str, **facts: Any) -> None:
        self._report(event, **facts)

    async def attempt(self, part: str, closing: Awaitable[Any]) -> None:
        """Awaits `closing`, and reports its KrappyError instead of raising it, so that the other parts are closed too.
        The next open recovers what was not closed cleanly."""
        try:
            await closing
        except KrappyError as error:
            self.report("close_failed", part=part, error=str(error))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in a thread where it may wait for the disk."""
        return await trio.to_thread.run_sync(work, limiter=self.disk_limiter)

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """`with` while the broker runs: it has threads for short syncs."""
        self.syncs = (
            SyncThreads(lambda: self._report("internal_error", task="sync", exc_info=True)) if self.fsync else None
        )
        try:
            yield
        finally:
            if self.syncs is not None:
                self.syncs.close()

    def folder_of(self, topic: str, index: int) -> Path:
        return self.config.data / "topics" / f"{topic}-{index}"

    def close_folder(self) -> None:
        """Lets nobody but this user read the data folder."""
        folder = self.config.data
        try:
            before = close_to_others(folder)
        except OSError as error:
            self.report("data_folder_open_to_others", folder=str(folder), error=str(error))
        else:
            if before is not None:
                self.report("data_folder_closed_to_others", folder=str(folder), mode_before=f"{before:04o}")

    def begin_stop(self) -> None:
        """Ends all waits for events, and refuses new work."""
        if not self.stopped:
            self.stopped = True
            self.stopping.fire()

    def check_taking(self) -> None:
        """Raises ShuttingDown."""
        if self.stopped:
            raise ShuttingDown("the broker is shutting down")

    @property
    def image(self) -> Image:
        """The cluster as this broker knows it."""
        return self.store.image

    async def until_controlled(self, seconds: float) -> None:
        """Returns once the cluster is controlled, as this broker knows it, or after so many seconds."""
        await wait_any([self.topics.changed, self.stopping], lambda: self.image.controlled or self.stopped, seconds)

    def overrides(self, kind: Kind) -> OverrideStore:
        return OverrideStore(self.store, self.meta, self.in_thread, kind)

    async def sync_meta(self, take_back: Callable[[], None] | None = None) -> None:
        """Returns once everything written to the meta database so far is on disk. One sync serves all callers.

        `take_back`: from `Meta.change`; called when the sync fails, or the caller is cancelled before it ends.
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
