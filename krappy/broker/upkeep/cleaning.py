"""Compaction of one partition: `store/cleaner.py` does it in a thread, and asks the view which events survive.

It may take long, all the more when its rate is limited, so it must block nothing else. It has a thread of its own, not
one of the disk's: it waits for locks whose holders may wait for a disk thread. It holds the lock that keeps logs
unchanged for a backup only around each swap of files. It ends at its next pause when the broker stops, the topic is
deleted or no longer compacted, or the view is turned off or begun anew: an incomplete view would let tombstones be
removed while the events that they delete stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.core import retention
from krappy.core.throttle import Throttle
from krappy.entries.entry import entry_offset, floor, is_tombstone
from krappy.errors import KrappyError
from krappy.store.cleaner import Candidate, CleaningPace, CleanResult
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

LOOK_UP = 1000  # keys looked up in the view at a time
PATIENCE_S = 20.0  # for a view that is behind, while other partitions wait; then it is tried in the next round
OTHERS_S = 5.0  # for which it waits for the views of other partitions


class _Over(Exception):
    """The compaction must end: the view may have been begun anew, or the topic is not compacted any more."""


class _Needed(Exception):
    """The compaction must end: a follower came that needs tombstones which it was about to remove."""


class _Pace(CleaningPace):
    """The pace of the cleaner, called in its thread, which trio started."""

    def __init__(self, runtime: Runtime, partition: Partition, throttle: Throttle) -> None:
        self._runtime = runtime
        self._partition = partition
        self._applier = partition.applier
        self._throttle = throttle
        self.forgotten: list[tuple[bytes, int]] = []  # tombstones that are removed: key, offset
        self.removed = 0  # how many of them are removed by now
        self._gone_below = 0

    def forget(self, key: bytes | None, offset: int) -> None:
        """Notes a tombstone that goes with the next swap."""
        self._gone_below = max(self._gone_below, offset + 1)
        if key is not None:
            self.forgotten.append((key, offset))

    def spend(self, size: int) -> None:
        trio.from_thread.run(self._pause, size)

    async def _pause(self, size: int) -> None:
        runtime, rate = self._runtime, self._runtime.config.cleaner_io_max_bytes_per_second
        await trio.lowlevel.checkpoint()
        await wait_any(
            [runtime.settings_changed, self._partition.moved, self._applier.moved],
            lambda: (
                runtime.config.cleaner_io_max_bytes_per_second != rate
                or self._partition.gone is not None
                or self._applier.stopped
                or not self._partition.config.compact
            ),
            self._throttle.spend(size, rate, trio.current_time()),
        )
        self.check()

    def check(self) -> None:
        """Raises _Over, or the partition's `gone`, unless all lookups until now were answered by a complete view."""
        if self._partition.gone is not None:
            raise self._partition.gone
        if self._applier.stopped or not self._partition.config.compact:
            raise _Over

    async def _still(self, markers: Sequence[int]) -> None:
        with trio.CancelScope(shield=True):  # else the rewritten segment would be for nothing
            await self._runtime.shrinking.acquire(self._partition.topic)
        try:
            self.check()
            if not self._partition.lack(max(self._gone_below, *(each + 1 for each in markers), 0)):
                raise _Needed
        except BaseException:
            self._runtime.shrinking.release(self._partition.topic)
            raise
        self._partition.stability.drop(markers)

    @contextmanager
    def swapping(self, markers: Sequence[int]) -> Iterator[None]:
        trio.from_thread.run(self._still, markers)
        try:
            yield
            self.removed = len(self.forgotten)
        finally:
            trio.from_thread.run_sync(self._runtime.shrinking.release, self._partition.topic)


async def clean(runtime: Runtime, partition: Partition, now: int, throttle: Throttle) -> None:
    """Compacts the closed segments of a partition as of `now` (ms), with its view as the offset map.

    Raises why the view can't be folded, and StorageError when that takes too long; housekeeping reports it.
    """
    log, views, number = partition.log, partition.views, partition.number
    pace, stable = _Pace(runtime, partition, throttle), partition.last_stable_offset
    await partition.flush_view(PATIENCE_S)
    ends = await _others_folded(partition)
    upto = min(retention.cleanable_upto(partition.config, log.segments, now), stable)
    kept_from = partition.kept_from()

    def survives(records: list[Candidate]) -> list[bool]:
        kept: list[bool] = []
        for start in range(0, len(records), LOOK_UP):
            some = records[start : start + LOOK_UP]
            found = iter(views.heads(number, [key for key, *_ in some if key is not None]))
            pace.check()
            deleting = _deleting_elsewhere(
                partition, [key for key, _, tombstone, _ in some if tombstone and key is not None], ends
            )
            for key, offset, tombstone, horizon in some:
                if key is None:
                    kept.append(False)  # as Kafka's cleaner: a compacted log has no place for it
                    continue
                entry = next(found)
                latest = None if entry is None else entry_offset(entry)
                keep = retention.survives(latest, offset, tombstone, horizon, now)
                if tombstone and not keep and (latest is None or offset >= latest):
                    keep = offset >= kept_from or (latest == offset and key in deleting)
                    if not keep:
                        pace.forget(key if latest == offset else None, offset)
                kept.append(keep)
        return kept

    def cleaned() -> CleanResult:
        return log.clean(survives, upto, now, pace, None if kept_from == math.inf else int(kept_from))

    result = None
    try:
        result = await trio.to_thread.run_sync(cleaned, limiter=runtime.cleaner_limiter)
    except _Over:
        return
    except _Needed:
        forgotten = pace.forgotten[: pace.removed]
    else:
        partition.stability.drop(result.markers)
        forgotten = pace.forgotten
    # The log first, then the view: else a crash between the two could bring a deleted key back.
    for start in range(0, len(forgotten), LOOK_UP):
        if partition.gone is None:
            _forget(partition, forgotten[start : start + LOOK_UP])
        await trio.lowlevel.checkpoint()
    if result is None:
        return
    runtime.report(
        "log_cleaned",
        partition=str(partition),
        before=result.bytes_before,
        after=result.bytes_after,
        removed=result.records_removed,
    )


async def _others_folded(partition: Partition) -> dict[int, int]:
    """Where the other partitions end, by index. If the topic may have strays, waits a while for their views to get
    there."""
    ends = {other.index: other.last_stable_offset for other in partition.strays.others(partition)}
    with trio.move_on_after(OTHERS_S):
        for other in partition.strays.others(partition) if partition.strays else ():
            with suppress(KrappyError):
                await other.applier.caught_up(ends.get(other.index))
    return ends


def _deleting_elsewhere(partition: Partition, keys: list[bytes], ends: Mapping[int, int]) -> set[bytes]:
    """Which of these deleted keys have, or may have, a value in another partition: without the tombstone it might
    become the newest again (strays.py). `ends`: events of other partitions before these offsets count."""
    others = partition.strays.others(partition)
    if not keys or not (partition.strays or any(other.offline for other in others)):
        return set()
    if partition.strays.count > len(others) + 1:
        return set(keys)  # other brokers have the other partitions
    found: set[bytes] = set()
    for other in others:
        applier = other.applier
        folded = applier.applied >= ends.get(other.index, 0)
        entries = partition.views.heads(other.number, keys)
        if not folded or other.gone is not None or applier.stopped or other.applier is not applier:
            return set(keys)  # what it has is not known now
        living = floor(other.expired_below)
        found.update(
            key
            for key, entry in zip(keys, entries, strict=True)
            if entry is not None and not is_tombstone(entry) and entry >= living
        )
    return found


def _forget(partition: Partition, tombstones: list[tuple[bytes, int]]) -> None:
    """Removes tombstones from the view that were removed from the log, unless their keys were written again."""
    found = partition.views.heads(partition.number, [key for key, _ in tombstones])
    deletes = [
        key
        for (key, offset), entry in zip(tombstones, found, strict=True)
        if entry is not None and is_tombstone(entry) and entry_offset(entry) == offset
    ]
    if deletes:
        partition.applier.take_out(deletes)
