"""Rebuilds views from the logs if their files are damaged.

One RocksDB holds all views. Once its compaction meets a damaged block, it takes no writes at all. Then all views are
deleted and folded again. Publishing goes on meanwhile; lookups wait, as after a start without views.

The same is done when the disk can't read one of RocksDB's files but can be written to: that part of the disk is lost.

RocksDB also takes no more writes after the disk has refused one for another reason than lack of room. Then it is
reopened as soon as the disk can be written to, and what its files lack is folded again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.viewed import Viewed
from krappy.errors import StorageError
from krappy.store.renewable import RENEWING, REOPENING
from krappy.store.rocks import Damaged
from krappy.store.views import Views

if TYPE_CHECKING:
    from krappy.broker.name_locks import NameLocks
    from krappy.broker.runtime import Runtime
    from krappy.broker.tables.snapshots import Snapshots
    from krappy.broker.upkeep.machine import Machine
    from krappy.store.view_numbers import ViewNumbers

LOOK_S = 0.5  # how often it checks whether the views are damaged
PAUSE_S = 5.0  # the pause after they were reopened
REST_S = 60.0  # the pause after they were made anew: a disk may damage them again and again


def open_views(folder: Path, sizes: tuple[int, int], numbers: ViewNumbers) -> tuple[Views, str]:
    """Opens the views. If they are damaged, deletes them and gives new ones, with the reason; else "". Blocks. Raises
    StorageError.

    `numbers`: of all partitions; the state of their views is read here, as a test. Views of other numbers may be there,
    too: a meta database that was lost, or is an older copy, does not know all that it has given. None of these numbers
    is given again: another partition would take that view for its own.
    """
    try:
        views = Views(folder, *sizes)
    except Damaged as error:
        return Views(folder, *sizes, anew=True), str(error)
    why = ""
    try:
        for number in (number for id in numbers.known() for number in numbers.of(id)):
            views.applied(number), views.floor(number), views.strays(number)
        numbers.pass_over(views.highest_number())
    except StorageError as error:
        views.look_at_doubtful()
        if not views.damaged:
            raise
        why = f"{error}; {views.damaged}" if views.damaged != str(error) else str(error)
    if why:  # only once the error is gone: its traceback may have an iterator, which keeps the old database open
        views.throw_away()
        views.begin()
    return views, why


class ViewKeeper:
    def __init__(self, runtime: Runtime, locks: NameLocks, machine: Machine, snapshots: Snapshots) -> None:
        """`locks`: held for each topic that is being changed."""
        self._runtime = runtime
        self._locks = locks
        self._machine = machine
        self._snapshots = snapshots

    async def run(self) -> None:
        """Until cancelled."""
        runtime = self._runtime
        takes = runtime.room.look, self._machine.try_disk
        while True:
            await trio.sleep(LOOK_S)
            if runtime.views.doubtful and await self._passes(*takes):
                await trio.to_thread.run_sync(runtime.views.look_at_doubtful, limiter=runtime.disk_limiter)
            if runtime.views.damaged and await self._passes(runtime.room.look):
                runtime.report("views_damaged", error=runtime.views.damaged)
                with trio.CancelScope(shield=True):
                    await self._renew(RENEWING, runtime.views.throw_away, Viewed.fold_anew)
                runtime.report("views_renewed")
                await trio.sleep(REST_S)
            elif runtime.views.stuck and await self._passes(*takes):
                runtime.report("views_refused", error=runtime.views.stuck)
                with trio.CancelScope(shield=True):
                    await self._renew(REOPENING, runtime.views.reopen, Viewed.fold_on)
                runtime.report("views_reopened")
                await trio.sleep(PAUSE_S)

    async def _passes(self, *checks: Callable[[], Awaitable[None]]) -> bool:
        """Whether the data folder is where it was, and the disk can be written to. If not, nothing may be damaged, and
        the views are better left: they can still be read."""
        try:
            for check in checks:
                await check()
        except StorageError:
            return False
        return True

    def _partitions(self) -> list[Viewed]:
        topics = list(self._runtime.topics.values())
        return [each for topic in topics for each in topic.local.values() if each.config.view and each.gone is None]

    async def _renew(self, reason: str, make: Callable[[], None], begin: Callable[[Viewed], None]) -> None:
        runtime, why = self._runtime, StorageError(reason)
        async with self._locks.everything():  # changes under way need the views until they end
            runtime.views.leave(reason)
        while not runtime.stopped:
            before = self._partitions()
            for partition in before:
                partition.applier.stop(why)
            for partition in before:
                await partition.applier.idle.wait()
            for scan in list(runtime.scans):
                scan.close()
            self._snapshots.close_all()
            try:
                # Else a new view would fold only a part of what is being removed.
                async with runtime.shrinking.everything():
                    await trio.to_thread.run_sync(make, limiter=runtime.disk_limiter)
                    # In the same turn as the rest: else an empty view could be taken for a folded one.
                    runtime.views.begin()
                    for partition in self._partitions():
                        begin(partition)
                    return
            except StorageError as error:
                runtime.report("view_waits", error=str(error))
                await trio.sleep(LOOK_S)
