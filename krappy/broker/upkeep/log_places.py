"""Finds logs whose folders were moved, removed or replaced while the broker runs.

An open file goes on taking events then, and they would be lost with it: the next open looks for the log where it was.
So such a log takes no more events. A log that takes none need not be looked at. For the folder of all logs see room.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.errors import StorageError

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.store.log import Log

LOOK_S = 0.5
AT_ONCE = 500  # logs that are looked at: about 30 µs each on a slow machine, in a thread
WHY = "the folder was moved, removed or replaced, so events would be lost with it: put it back, and restart the broker"


class LogPlaces:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ends: dict[Partition, int] = {}  # where each log ended at the last look
        self._due: dict[Log, Partition] = {}  # the logs that have grown since they were looked at
        self._limiter = trio.CapacityLimiter(1)  # its own, so it waits for no other thread

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            try:
                await self._look()
            except StorageError:  # the folder of all logs is away, which is told already
                pass
            except Exception:  # a bug of ours, which must not end housekeeping
                self._runtime.report("internal_error", task="the look for moved folders", exc_info=True)

    async def _look(self) -> None:
        """Raises StorageError."""
        ends, self._ends = self._ends, {each: each.end_offset for each in self._runtime.topics.local()}
        self._due |= {each.log: each for each, end in self._ends.items() if ends.get(each) != end}
        grown = {log: self._due.pop(log) for log in [*islice(self._due, AT_ONCE)]}
        if not grown:
            return
        if await self._elsewhere(grown):
            await self._runtime.room.look()
            away = await self._elsewhere(grown)  # they alone are away
            in_use = {each.log for each in self._runtime.topics.local()}  # others were replaced or deleted meanwhile
            for log in in_use.intersection(away):
                log.refuse(WHY)
                grown[log].commit.tell(StorageError(log.broken))

    async def _elsewhere(self, logs: Iterable[Log]) -> list[Log]:
        def look() -> list[Log]:
            return [log for log in logs if not (log.broken or log.is_in_place)]

        return await trio.to_thread.run_sync(look, limiter=self._limiter)
