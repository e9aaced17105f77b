"""Opening many logs at a time: each waits for the disk on its own, so that thousands of partitions start in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from krappy import descriptors
from krappy.errors import StorageError
from krappy.store.log import Log
from krappy.topic_config import TopicConfig


class Place(NamedTuple):
    """Where a partition's log is. `name`: of the partition, for people."""

    name: str
    folder: Path
    config: TopicConfig


async def open_logs(
    places: Sequence[Place],
    limiter: trio.CapacityLimiter,
    report: Callable[..., None],
    check_stop: Callable[[], None],
    *,
    new: bool,
) -> list[Log]:
    """The logs in the order of `places`, all of them or none: after a failure what was opened is closed, and if it is
    `new` removed. Raises what the first failure raised: StorageError, and what `check_stop` does, which is called from
    threads all the while."""
    if new and len(places) > descriptors.room():
        most = descriptors.allowed()
        raise StorageError(f"every partition keeps a file open, and the broker may have {most} (RLIMIT_NOFILE)")
    logs: list[Log | None] = [None] * len(places)
    failures: list[Exception] = []

    async def open_one(number: int, place: Place) -> None:
        if failures:
            return
        opening = partial(Log.open, place.folder, place.config, check_stop=check_stop)
        try:
            log = await trio.to_thread.run_sync(opening, limiter=limiter)
        except Exception as error:
            failures.append(error)
            return
        logs[number] = log
        if not log.recovery.clean:
            report("log_recovered", partition=place.name, found=str(log.recovery))

    async with trio.open_nursery() as nursery:
        for number, place in enumerate(places):
            nursery.start_soon(open_one, number, place)
    opened = [log for log in logs if log is not None]
    if failures:
        with trio.CancelScope(shield=True):
            for log in opened:
                await _part_with(log, limiter, new)
        raise failures[0]
    return opened


async def _part_with(log: Log, limiter: trio.CapacityLimiter, new: bool) -> None:
    try:
        await trio.to_thread.run_sync(log.destroy if new else log.close, limiter=limiter)
    except Exception:  # the failure before this one is the one to tell of; the folder is looked after by the next open
        return
