"""Opens many logs at a time: each waits for the disk on its own, so that thousands of partitions start in seconds.

When the broker starts, a log that can't be opened is replaced by one that is out of service (store/offline.py), and the
others serve. An error that concerns all logs, such as too few descriptors, ends the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from krappy import descriptors
from krappy.errors import KrappyError, ShuttingDown, StorageError
from krappy.settings.topic import TopicConfig
from krappy.store import identity
from krappy.store.disk import NO_DESCRIPTOR, OS_DISK
from krappy.store.format import LOG
from krappy.store.log import Log
from krappy.store.offline import OfflineLog
from krappy.store.reached import Reached

NEW_AT_ONCE = 16  # new logs that one thread call makes: each takes a fraction of a millisecond


class LogPlace(NamedTuple):
    """A partition's log to be opened. `name`: the partition's, for people. `topic_id`: as Kafka writes it. `applied`:
    its view has the events before this offset, so the log must have had them. `reached`: the record of how far it was
    on the disk."""

    name: str
    folder: Path
    config: TopicConfig
    topic_id: str
    reached: Reached
    applied: int = 0


async def open_logs(
    places: Sequence[LogPlace],
    limiter: trio.CapacityLimiter,
    report: Callable[..., None],
    check_stop: Callable[[], None],
    *,
    new: bool,
    synced: bool = True,
) -> list[Log]:
    """Opens the logs, and gives them in the order of `places`. `new` logs are made all or none: after a failure those
    that were made are removed. Not `synced`: they are made without syncs, and the caller checkpoints them.

    `check_stop` is called from threads again and again. Raises the first failure: a StorageError, or the error of
    `check_stop`.
    """
    if new:
        check_room(len(places))
    logs: list[Log | None] = [None] * len(places)
    failures: list[Exception] = []
    refused: dict[int, Exception] = {}

    def open_these(numbers: range) -> None:
        for number in numbers:
            if failures:
                return
            try:
                logs[number] = _open(places[number], check_stop, new=not synced)
            except Exception as error:
                if new or not _is_its_own(error):
                    failures.append(error)
                else:
                    refused[number] = error

    async def open_some(numbers: range) -> None:
        await trio.to_thread.run_sync(open_these, numbers, limiter=limiter)
        for number in numbers:
            place = places[number]
            error = refused.get(number)
            if error is not None:
                report("partition_offline", partition=place.name, error=str(error), exc_info=_is_ours(error))
                logs[number] = OfflineLog(place.folder, place.config, f"it is out of service since the start: {error}")
            log = logs[number]
            if log is None:
                continue
            if not log.recovery.clean:
                report("log_recovered", partition=place.name, found=str(log.recovery))
            if log.recovery.lost:
                report("events_lost", partition=place.name, lost=log.recovery.lost, kept_aside=log.recovery.set_aside)

    try:
        if not synced:
            await trio.to_thread.run_sync(_make_folders, places, limiter=limiter)
    except StorageError as error:
        failures.append(error)
    piece = 1 if synced else NEW_AT_ONCE
    async with trio.open_nursery() as nursery:
        for first in range(0, len(places), piece):
            nursery.start_soon(open_some, range(first, min(first + piece, len(places))))
    opened = [log for log in logs if log is not None]
    if failures:
        with trio.CancelScope(shield=True):
            for log in opened:
                await _part_with(log, limiter, new)
        raise failures[0]
    return opened


def check_room(partitions: int) -> None:
    """Raises StorageError when there are too few descriptors for so many new partitions."""
    if partitions > descriptors.room():
        most = descriptors.allowed()
        raise StorageError(
            f"every partition keeps a file open, and the broker may have {most} (RLIMIT_NOFILE): "
            "start it with a higher limit (`ulimit -n`), or make fewer partitions"
        )


def _open(place: LogPlace, check_stop: Callable[[], None], *, new: bool) -> Log:
    if place.applied and not any(place.folder.glob("*" + LOG)):
        raise StorageError(f"{place.folder} is missing or empty, and its log had offsets up to {place.applied}")
    identity.claim(place.folder, place.topic_id)
    log = Log.open(place.folder, place.config, check_stop=check_stop, new=new, reached=place.reached)
    identity.mark(place.folder, place.topic_id)
    return log


def _is_its_own(error: Exception) -> bool:
    """Whether the error concerns this log only, so that others can be opened."""
    if isinstance(error, ShuttingDown):
        return False
    cause = error.__cause__
    return not (isinstance(cause, OSError) and cause.errno in NO_DESCRIPTOR)


def _is_ours(error: Exception) -> bool:
    """Whether it is a bug in this program, so that its traceback is reported."""
    return not isinstance(error, KrappyError)


def _make_folders(places: Sequence[LogPlace]) -> None:
    """Makes all folders, with one sync of the folder that they are in. Blocks. Raises StorageError."""
    try:
        for place in places:
            place.folder.mkdir(exist_ok=True)
        for above in {place.folder.parent for place in places}:
            OS_DISK.fsync_dir(above)
    except OSError as error:
        raise StorageError(f"new partitions: {error}") from error


async def _part_with(log: Log, limiter: trio.CapacityLimiter, new: bool) -> None:
    try:
        await trio.to_thread.run_sync(log.destroy if new else log.close, limiter=limiter)
    except Exception:  # the caller raises the earlier failure; the next open recovers or removes the folder
        return
