"""The state of the machine and its disk, for health checks and metrics.

Whether the disk can be written to is tested by a write: a file system that became read-only looks like any other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from krappy.errors import StorageError
from krappy.store import identity
from krappy.store.disk import OS_DISK
from krappy.store.format import REACHED
from krappy.store.reached import ReachedFile
from krappy.store.refusals import refusals

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.upkeep.room import Room

PROBE = "probe"
PROBE_SIZE = 4096  # a block: a full disk has no room for it either
PAGE = os.sysconf("SC_PAGE_SIZE")


def make_folders(data: Path) -> ReachedFile:
    """Makes and syncs the folders. Existing ones are synced as well: a broker that was killed may not have synced them.
    Gives the records of how far the logs in them have been on disk."""
    with refusals(data):
        OS_DISK.mkdir(data / "topics")
        reached = ReachedFile(data / REACHED)
        for folder in (data, data / "topics"):
            OS_DISK.fsync_dir(folder)
    return reached


def report_unclaimed(runtime: Runtime) -> None:
    """Reports folders with events of no topic: in a cluster ZooKeeper may have been given older data. The topics are
    those of the image: a broker of a cluster has no view numbers of topics that were made while it was away."""
    topics = [(name, len(topic.partitions)) for name, topic in runtime.image.topics.items()]
    topics += [(gone.name, len(gone.numbers)) for gone in runtime.catalog.deleting()]
    known = {f"{name}-{index}" for name, count in topics for index in range(count)}
    for folder in identity.unclaimed(runtime.config.data / "topics", known):
        runtime.report("folder_unclaimed", folder=str(folder), topic_id=identity.owner(folder) or "unknown")


class Machine:
    def __init__(self, runtime: Runtime, room: Room) -> None:
        self._runtime = runtime
        self._room = room
        self._limiter = trio.CapacityLimiter(1)  # its own: a disk that hangs must not take the threads of others

    async def try_disk(self) -> None:
        """Writes a little to the data folder, syncs it and removes it. Can be cancelled. Raises StorageError, also if
        another folder is in its place."""
        if self._room.away:
            raise StorageError(self._room.refusal)
        folder = self._runtime.config.data
        await trio.to_thread.run_sync(try_writing, folder, limiter=self._limiter, abandon_on_cancel=True)

    async def log_dir(self) -> tuple[str, int, int]:
        """(the folder of the logs, the size of its file system in bytes, free bytes). Raises StorageError."""
        folder = self._runtime.config.data / "topics"
        try:
            usage = await self._runtime.in_thread(lambda: shutil.disk_usage(folder))
        except OSError as error:
            raise StorageError(f"{folder}: {error}") from error
        return str(folder.absolute()), usage.total, usage.free

    def events_refused(self) -> str:
        """Why events are refused for lack of room; empty: they are not."""
        return self._room.refusal

    def catalog_failed(self) -> str:
        """Why the catalog takes no changes until it is reopened; empty: it takes them."""
        return self._runtime.meta.failure

    def tables_refused(self) -> str:
        """Why the views take no events until they are reopened; empty: they take them."""
        return self._runtime.views.stuck

    def failed_logs(self) -> Iterator[str]:
        """For each partition, why it takes no more events until the broker is restarted; empty: it takes them."""
        for partition in self._runtime.topics.local():
            yield partition.log_failed

    def disk_bytes(self) -> tuple[int, int, int]:
        """(bytes of the disk, free bytes, bytes of the ballast), at most half a second old."""
        room = self._room
        return *room.space, room.held

    def view_sizes(self) -> dict[str, int]:
        """RocksDB's own numbers of the views: bytes and counts. Raises StorageError."""
        return self._runtime.views.stats()

    def resident_bytes(self) -> int:
        """Memory of this process that is in RAM; 0 where the system does not tell (proc(5))."""
        try:
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * PAGE


def try_writing(folder: Path) -> None:
    """Blocks for the disk. Raises StorageError."""
    path = folder / PROBE
    try:
        OS_DISK.write_file(path, bytes(PROBE_SIZE))
        OS_DISK.unlink(path)
    except OSError as error:
        raise StorageError(f"{folder} can't be written: {error.strerror or error}") from error
