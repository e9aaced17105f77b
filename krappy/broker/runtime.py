"""What a broker lends to its parts: its clock, its tasks and threads, its word to the log, its topics and stores.

Parts are given this, and beside it the other parts that they work with; none of them is given the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from krappy.broker.clock import Clock
from krappy.broker.gate import Gate
from krappy.broker.meta_sync import MetaSync
from krappy.broker.topics.topics import Topics
from krappy.core.cluster.image import Image
from krappy.errors import KrappyError, ShuttingDown
from krappy.measures import StoreMeasures
from krappy.settings.server import ServerConfig
from krappy.store.catalog import Catalog
from krappy.store.meta import Meta
from krappy.store.views import Views
from krappy.waiting import Later, Signal

Report = Callable[..., None]
T = TypeVar("T")
SHARE = 8  # the part of the memory's budget that each of the broker's own stores may take beside it
DISK_THREADS = 8
VERSION = metadata.version("krappy")


class OpenScan(Protocol):
    """One that is open. `used_ms`: when it was last asked for a page."""

    used_ms: int

    def close(self) -> None: ...


class Runtime:
    """`config`: the settings in force, another one after each change. `stopping`: fired when it begins to stop."""

    def __init__(self, config: ServerConfig, report: Report | None = None) -> None:
        self.config = config
        self.id = config.broker_id
        self.version = VERSION
        self.fsync = config.durability == "fsync"
        self.clock = Clock()
        self.started_ms = self.now_ms()
        self.measures = StoreMeasures(kept_limit=config.memory_bytes // SHARE)
        self.settings_changed = Signal()
        self.disk_limiter = trio.CapacityLimiter(DISK_THREADS)  # of threads that wait for nothing but the disk
        self.cleaner_limiter = trio.CapacityLimiter(1)
        self.counting = trio.CapacityLimiter(1)  # of those who look through whole views
        self.shrinking = trio.Lock()  # held while events are taken out of a log; topics' locks are taken after it
        self.decisions = Gate()  # closed while a backup is taken
        self.stopping = Signal()
        self.stopped = False
        self.opened = False  # everything is recovered, and nothing closed yet
        self.topics = Topics(config.latest_alias)
        self.meta: Meta
        self.views: Views
        self.catalog: Catalog
        self.scans: set[OpenScan] = set()
        self.dropped_views: list[int] = []  # whose space on disk housekeeping gives back
        self._meta_sync: MetaSync
        self._report = report or (lambda event, **facts: None)
        self._nursery: trio.Nursery | None = None

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

    async def attempt(self, part: str, closing: Awaitable[Any]) -> None:
        """What can't be left clean is made good on the next open; the rest is closed all the same."""
        try:
            await closing
        except KrappyError as error:
            self.report("close_failed", part=part, error=str(error))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Where it may wait for the disk."""
        return await trio.to_thread.run_sync(work, limiter=self.disk_limiter)

    def folder_of(self, topic: str, index: int) -> Path:
        return self.config.data / "topics" / f"{topic}-{index}"

    def begin_stop(self) -> None:
        """From here on nothing waits for events any more and nothing new is taken."""
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
        return self.catalog.tree.image

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
