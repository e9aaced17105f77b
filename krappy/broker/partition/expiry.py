"""Entries of a view whose events have expired are absent at once. Here they leave the disk, when there are many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from krappy.core import retention

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition

STEP = 1000  # entries looked at in one go: less than a millisecond
PAUSE_S = 0.01  # between two of them: it is in no hurry
LOOK_S = 0.1  # between two looks whether a snapshot is closed


class Swept:
    """What the last sweep over a partition's view came to."""

    def __init__(self) -> None:
        self.below = 0  # the offset below which no entry was left
        self.left = 0  # entries that were left


async def sweep(partition: Partition) -> int | None:
    """Takes what has expired out of the view, if that is worth it: how many entries are left. Raises StorageError.

    Snapshots that were taken before hold it up: they may show what has expired since. Later ones do not.
    """
    swept, below, applier, views = partition.swept, partition.expired_below, partition.applier, partition.views
    if not partition.config.view or not retention.must_sweep(below - swept.below, swept.left):
        return None
    before = views.open_snapshots()
    left, after = 0, None
    while True:
        while views.busy() or not all(snapshot.closed for snapshot in before):
            await trio.sleep(LOOK_S)
        if partition.gone is not None or partition.applier is not applier or applier.stopped:
            return None
        some, after = views.take_out_below(partition.number, below, after, STEP)
        left += some
        if after is None:
            break
        await trio.sleep(PAUSE_S)
    swept.below, swept.left = below, left
    applier.strays.taken_out()
    return left
