"""Views whose files are damaged are made anew from the logs, by themselves.

One RocksDB holds them all, and once it meets a damaged block in a compaction it takes no writes of any. So all of them
are thrown away and folded again. Publishing goes on meanwhile; lookups wait, as they do after a start without views.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from krappy.broker.applier import Applier
from krappy.broker.expiry import Swept
from krappy.errors import StorageError
from krappy.store.rocks import Damaged
from krappy.store.views import RENEWING, Views

if TYPE_CHECKING:
    from krappy.broker.broker import Broker
    from krappy.broker.partition import Partition

LOOK_S = 0.5  # between two looks whether they are damaged
REST_S = 60.0  # after they were made anew, for a disk that damages them again and again


def open_views(folder: Path, sizes: tuple[int, int], numbers: Sequence[int]) -> tuple[Views, str]:
    """The views, and why they are new ones if they were damaged. Blocks. Raises StorageError.

    `numbers`: of the partitions whose state is about to be read, which is tried here.
    """
    try:
        views = Views(folder, *sizes)
    except Damaged as error:
        return Views(folder, *sizes, anew=True), str(error)
    try:
        for number in numbers:
            views.applied(number), views.floor(number), views.strays(number)
    except Damaged as error:
        views.throw_away()
        views.begin()
        return views, str(error)
    return views, ""


class ViewKeeper:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run(self) -> None:
        """Until cancelled."""
        broker = self._broker
        while True:
            await trio.sleep(LOOK_S)
            if broker.views.damaged:
                broker.report("views_damaged", error=broker.views.damaged)
                with trio.CancelScope(shield=True):
                    await self._renew()
                await trio.sleep(REST_S)

    def _partitions(self) -> list[Partition]:
        topics = list(self._broker.topics.values())
        return [each for topic in topics for each in topic.partitions if each.config.view and each.gone is None]

    async def _renew(self) -> None:
        broker, why = self._broker, StorageError(RENEWING)
        while not broker.stopped:
            before = self._partitions()
            for partition in before:
                partition.applier.stop(why)
            for partition in before:
                await partition.applier.idle.wait()
            for scan in list(broker.scans):
                scan.close()
            broker.snapshots.close_all()
            try:
                await trio.to_thread.run_sync(broker.views.throw_away, limiter=broker.disk_limiter)
            except StorageError as error:
                broker.report("view_waits", error=str(error))
                await trio.sleep(LOOK_S)
                continue
            broker.views.begin()  # and in the same step nobody takes an empty one for one that is folded
            for partition in self._partitions():
                begin_anew(partition)
            broker.report("views_renewed")
            return


def begin_anew(partition: Partition) -> None:
    """Folds the log from its start on."""
    old = partition.applier
    partition.floor, partition.swept = 0, Swept()
    partition.applier = Applier(partition, partition.log.start_offset)
    old.close()  # who waited for it to have less to do waits no longer
    partition.applier.start()
