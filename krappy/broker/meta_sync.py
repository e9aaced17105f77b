"""Group commit of the meta database: one sync serves all who wait. It also reopens the database after a failed
write."""

from __future__ import annotations

import shutil
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from krappy.errors import KrappyError, StorageError
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime


LOOK_S = 0.25  # how often it checks whether the database has failed
LONGEST_PAUSE_S = 4.0  # between two tries to reopen it


class MetaSync:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiters: list[Later[None]] = []
        self._running = False

    async def wait(self) -> None:
        """Returns once everything written to the meta database so far is on disk.

        With durability "os" that is at once: the operating system has the write-ahead log already.
        """
        if not self._runtime.fsync:
            await trio.lowlevel.checkpoint()
            return
        if self._running:
            await self.later().wait()
            return
        self._running = True
        try:
            await self._sync()  # by this task: another task would need two more turns of the loop
        finally:
            self._running = False
            self._begin()

    def later(self) -> Later[None]:
        """As `wait`, without a task that waits."""
        later: Later[None] = Later()
        if not self._runtime.fsync:
            later.resolve(None)
            return later
        self._waiters.append(later)
        self._begin()
        return later

    def _begin(self) -> None:
        """Serves those who wait, unless a sync runs."""
        if self._waiters and not self._running:
            self._running = True
            self._runtime.spawn(self._run)

    async def _run(self) -> None:
        try:
            while self._waiters:
                waiters, self._waiters = self._waiters, []
                try:
                    await self._sync()
                except KrappyError as error:
                    for later in waiters:
                        later.reject(error)
                else:
                    for later in waiters:
                        later.resolve(None)
        finally:
            self._running = False

    async def _sync(self) -> None:
        began = perf_counter()
        await trio.to_thread.run_sync(self._runtime.meta.sync, limiter=self._runtime.disk_limiter)
        self._runtime.measures.catalog_syncs.observe(perf_counter() - began)

    async def mend(self) -> None:
        """Reopens the database when it has failed, once the disk has room for that. Until cancelled."""
        told, pause = False, LOOK_S
        while True:
            await trio.sleep(pause)
            if not self._runtime.meta.failure:
                continue
            if not told:
                self._runtime.report("catalog_failed", error=self._runtime.meta.failure)
            told = True
            try:
                done = await trio.to_thread.run_sync(self._try_reopen, limiter=self._runtime.disk_limiter)
            except KrappyError as error:
                self._runtime.report("catalog_failed", error=str(error))
                pause = min(LONGEST_PAUSE_S, 2 * pause)
                continue
            if done:
                self._runtime.report("catalog_reopened")
                told, pause = False, LOOK_S

    def _try_reopen(self) -> bool:
        """Reopens the database, and returns whether it did. It does not try without room on the disk: a failed database
        can still be read, but one that fails to open can't. Raises StorageError."""
        meta = self._runtime.meta
        try:
            if shutil.disk_usage(meta.folder).free < meta.room_to_reopen():
                return False
        except OSError as error:
            raise StorageError(f"{meta.folder}: {error}") from error
        meta.reopen()
        return True
