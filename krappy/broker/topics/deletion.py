"""Deletes what is left of a topic that the catalog has marked as deleted: groups' positions in it, its files and views,
and last the mark.

A crash, or a disk that refuses, may come between any two steps. Then all of them are done again.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from krappy.broker.topics.topic import Topic
from krappy.errors import StorageError, UnknownTopic
from krappy.store import identity
from krappy.store.catalog import StoredTopic as StoredTopic
from krappy.store.disk import OS_DISK
from krappy.types import text_id

if TYPE_CHECKING:
    from krappy.broker.latest.latest import LatestTables
    from krappy.broker.runtime import Runtime

Forget = Callable[[str, bytes], Awaitable[None]]  # deletes all groups' positions in a topic (name, id), durably


AT_ONCE = 100  # views that are dropped in one turn


async def close(runtime: Runtime, latest: LatestTables, topic: Topic) -> None:
    """Closes its partitions, so that reads, writes and waits in it raise UnknownTopic."""
    gone = UnknownTopic(f"the topic '{topic.name}' was deleted")
    async with trio.open_nursery() as nursery:
        for partition in topic.local.values():
            nursery.start_soon(runtime.attempt, str(partition), partition.close(gone))
    for partition in topic.local.values():
        latest.forget(partition.number)


async def remove(runtime: Runtime, topic: Topic) -> None:
    """Closes and removes its files. If one can't be removed, `finish` tries again."""
    async with trio.open_nursery() as nursery:
        for partition in topic.local.values():
            nursery.start_soon(runtime.attempt, str(partition), partition.remove())


async def finish(runtime: Runtime, forget: Forget, stored: StoredTopic) -> None:
    """Removes what is left of the topic, with groups' positions in it, and then takes it off the list of deletions.
    After that its name is free. Raises StorageError."""
    await forget(stored.name, stored.id)
    await remove_left(runtime, stored.name, range(len(stored.numbers)), stored.id, stored.numbers)
    await runtime.catalog.forget(stored)
    runtime.dropped_views += stored.numbers


async def remove_left(runtime: Runtime, topic: str, indexes: Sequence[int], id: bytes, numbers: Iterable[int]) -> None:
    """Removes the views of these numbers, and the folders of these partitions if they are of the topic with this id,
    durably. Then nothing here tells how far their logs were. Raises StorageError."""
    in_thread = partial(trio.to_thread.run_sync, limiter=runtime.disk_limiter)
    for dropped, number in enumerate(numbers, 1):
        runtime.views.drop(number)
        if dropped % AT_ONCE == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()
    folders = [runtime.folder_of(topic, index) for index in indexes]
    await in_thread(_remove, folders, text_id(id))
    await in_thread(_sync, runtime.folder_of(topic, 0).parent)
    await in_thread(runtime.reached.forget, id, indexes)
    await in_thread(runtime.views.flush)


def _remove(folders: Iterable[Path], topic_id: str) -> None:
    for folder in folders:
        if identity.owner(folder) not in (None, topic_id):
            continue  # it is another topic's
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(f"{folder} can't be removed: {error}") from error


def _sync(topics: Path) -> None:
    """Makes the removals durable. Else a power loss might bring the folders back, for a new topic of that name."""
    try:
        OS_DISK.fsync_dir(topics)
    except OSError as error:
        raise StorageError(f"{topics}: {error}") from error
