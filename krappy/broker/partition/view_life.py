"""How a partition's view begins, ends, and goes from one rule of what is absent to another."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.applier import Applier
from krappy.broker.partition.expiry import Swept
from krappy.errors import StorageError
from krappy.topic_config import TopicConfig

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition


def first_unapplied(partition: Partition) -> int:
    """Where folding goes on after a restart.

    A view that has seen events, or the end of a transaction, which the log does not have any more (a power loss
    with durability "os", a damaged disk) is dropped and folded anew, because the log is the truth. That is on disk
    before the log grows again: a view that a crash brought back could not be told from one that is right.

    So is one that is older than what has left the log: a cleaning, and a deletion under `compact`, wait until the view
    is on disk. Since then its files were damaged, or are an older copy, and the tombstones of its keys may be gone.
    """
    log, views, number = partition.log, partition.views, partition.number
    if not partition.config.view or partition.offline:
        return partition.high_watermark
    applied, lost = views.applied(number), log.recovery.lost_offsets
    end = partition.last_stable_offset
    if applied > end or (applied and lost):
        partition.report("view_ahead_of_log", applied=applied, end=end, lost=lost)
    elif 0 < applied < _needed(partition):
        partition.report("view_older_than_log", applied=applied, clean=log.clean_upto, start=log.start_offset)
    else:
        return max(applied, log.start_offset) if applied else begin(partition)
    views.drop(number)
    views.flush()
    partition.floor = 0
    return begin(partition)


def _needed(partition: Partition) -> int:
    """The offset up to which the view has been on disk, as the log tells: what is gone from it was in the view before.

    Not when the view was begun anew since: it was folded from what the log still had.
    """
    log = partition.log
    cleaned = log.clean_upto if partition.views.begun(partition.number) < log.clean_upto else 0
    return max(cleaned, log.start_offset if partition.config.compact else 0)


def begin(partition: Partition) -> int:
    """Where a view without anything in it begins to be folded, which it notes."""
    log = partition.log
    if log.clean_upto:
        with suppress(StorageError):  # a start that comes before it has caught up begins it once more, then
            partition.views.note_begun(partition.number, log.clean_upto)
    return log.start_offset


async def configure(partition: Partition, config: TopicConfig) -> None:
    before = partition.config
    if config.view and not before.view:  # nobody may look things up in what is not folded yet
        await _drop(partition)
        partition.applier = Applier(partition, begin(partition))
    partition.config = partition.log.config = config
    if before.view and not config.view:
        partition.applier.stop(partition.no_view())
        await partition.applier.idle.wait()
        await _drop(partition)
        partition.applier = Applier(partition, partition.high_watermark)
    partition.applier.start()


async def keep_absent(partition: Partition, config: TopicConfig) -> None:
    """Before its topic gets settings under which entries outlive their events: those that have expired by now must not
    come back, by a crash neither. On disk when it returns. Raises StorageError."""
    if outlives(partition.config, config):
        if partition.gone is not None:
            raise partition.gone  # what has expired in it is not known
        _raise_floor(partition)
        await trio.to_thread.run_sync(partition.views.flush, limiter=partition.disk_limiter)


def outlives(before: TopicConfig, after: TopicConfig) -> bool:
    """Whether entries that are absent under the settings `before` would be there under those `after`. From before the
    change is prepared until it is in force nothing is taken out of the log (`Broker.shrinking`): what goes by the old
    settings need not stand in the view, and what goes by the new ones must."""
    return before.view and after.view and after.compact and not before.compact


def _raise_floor(partition: Partition) -> None:
    partition.floor = max(partition.floor, partition.start_offset)
    partition.views.raise_floor(partition.number, partition.floor)


async def _drop(partition: Partition) -> None:
    """On disk when it returns, if the disk lets it: a crash must not bring an old view back where retention has gone on
    without it."""
    partition.floor, partition.swept = 0, Swept()
    partition.views.drop(partition.number)
    try:
        await trio.to_thread.run_sync(partition.views.flush, limiter=partition.disk_limiter)
    except StorageError as error:
        partition.report("view_waits", error)
