"""Group commit of the meta database: one sync serves all who wait for one."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import trio

from krappy.errors import KrappyError
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.broker import Broker


class MetaSync:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiters: list[Later[None]] = []
        self._running = False

    async def wait(self) -> None:
        """Returns once everything written to the meta database so far is on disk.

        With durability "os" that is at once: the write-ahead log is with the operating system already.
        """
        if not self._broker.fsync:
            await trio.lowlevel.checkpoint()
            return
        await self.later().wait()

    def later(self) -> Later[None]:
        """As `wait`, without a task that waits."""
        later: Later[None] = Later()
        if not self._broker.fsync:
            later.resolve(None)
            return later
        self._waiters.append(later)
        if not self._running:
            self._running = True
            self._broker.spawn(self._run)
        return later

    async def _run(self) -> None:
        try:
            while self._waiters:
                waiters, self._waiters = self._waiters, []
                began = perf_counter()
                try:
                    await trio.to_thread.run_sync(self._broker.meta.sync, limiter=self._broker.disk_limiter)
                except KrappyError as error:
                    for later in waiters:
                        later.reject(error)
                else:
                    self._broker.measures.catalog_syncs.observe(perf_counter() - began)
                    for later in waiters:
                        later.resolve(None)
        finally:
            self._running = False
