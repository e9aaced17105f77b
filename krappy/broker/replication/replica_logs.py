"""The logs of this broker's replicas: how one is opened that others have copies of, and how it begins anew.

A log that has lost events, or can't be opened, is set aside if other replicas have them: this broker takes itself out
of the partition's candidates and copies the log again. The only replica stays as it is: it is all there is. The folder
of another topic, which had this name, is set aside as well.

    DATA/set-aside/<topic>-<n>.<time>/    such a log, for people to look into; it can be deleted
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from krappy.broker.partition.replica import Standing
from krappy.broker.topics.opening import LogPlace, open_logs
from krappy.broker.topics.topic import Topic
from krappy.errors import KrappyError
from krappy.store import identity
from krappy.store.disk import OS_DISK
from krappy.store.format import LOG
from krappy.store.local_replicas import LocalReplicas, ReplicaId
from krappy.store.log import Log
from krappy.store.offline import OfflineLog
from krappy.store.refusals import refusals
from krappy.types import text_id

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

SET_ASIDE = "set-aside"
Wanted = tuple[Topic, int, int]  # topic, partition, the number of its view


class ReplicaLogs:
    """`lost`: the replicas whose events this broker may have lost, until nobody counts on it for them."""

    def __init__(self, runtime: Runtime, replicas: LocalReplicas) -> None:
        self._runtime = runtime
        self.replicas = replicas
        self.lost: set[ReplicaId] = set()

    async def open(self, wanted: Sequence[Wanted]) -> list[tuple[Log, Standing]]:
        """Opens these logs, and makes those that are missing. Raises StorageError when the disk refuses them all."""
        await self._runtime.in_thread(lambda: self._note(wanted))
        logs = await self._open([self._place(*each) for each in wanted])
        found: list[tuple[Log, Standing]] = []
        for each, log in zip(wanted, logs, strict=True):
            standing = await self._standing(each, log)
            if standing is None:
                log, standing = await self._anew(each, log)
            found.append((log, standing))
        return found

    def _note(self, wanted: Sequence[Wanted]) -> None:
        """Finds replicas whose folders are gone, and notes new ones before their folders are made."""
        for topic, index, number in wanted:
            folder = self._runtime.folder_of(topic.name, index)
            if identity.owner(folder) not in (None, text_id(topic.id)):
                self._set_aside(folder)
            if (topic.id, index) in self.replicas and not any(folder.glob("*" + LOG)):
                self._lose(topic, index, number, f"{folder} is missing or empty")
        self.replicas.note((topic.id, index) for topic, index, _ in wanted)

    def _lose(self, topic: Topic, index: int, number: int, why: str) -> None:
        if len(topic.image.partitions[index].replicas) > 1:
            self.lost.add((topic.id, index))
            self._runtime.views.drop(number)
            self._runtime.report("replica_lost", partition=f"{topic.name}-{index}", error=why)

    def _place(self, topic: Topic, index: int, number: int) -> LogPlace:
        runtime = self._runtime
        applied = 0 if (topic.id, index) in self.lost else runtime.views.applied(number)
        folder = runtime.folder_of(topic.name, index)
        return LogPlace(f"{topic.name}-{index}", folder, topic.config, text_id(topic.id), applied)

    async def _open(self, places: Sequence[LogPlace]) -> list[Log]:
        runtime = self._runtime
        return await open_logs(places, runtime.disk_limiter, runtime.report, runtime.check_taking, new=False)

    async def _standing(self, wanted: Wanted, log: Log) -> Standing | None:
        """How far the log is committed. None: other replicas have what it lacks."""
        topic, index, number = wanted
        why = ""
        if isinstance(log, OfflineLog):
            why = log.broken
        elif log.recovery.lost_offsets or log.recovery.damage:
            why = str(log.recovery)
        if not why:
            applied = self._runtime.views.applied(number)
            try:
                return await self._runtime.in_thread(lambda: Standing.of(log, applied))
            except KrappyError as error:
                why = str(error)
        if len(topic.image.partitions[index].replicas) == 1:
            return Standing.whole(log)
        self._lose(topic, index, number, why)
        return None

    async def _anew(self, wanted: Wanted, log: Log) -> tuple[Log, Standing]:
        topic, index, _ = wanted
        folder = self._runtime.folder_of(topic.name, index)

        if not isinstance(log, OfflineLog):
            await self._runtime.in_thread(log.close)
        await self._runtime.in_thread(lambda: self._set_aside(folder))
        [made] = await self._open([self._place(*wanted)])
        return made, Standing.whole(made)

    def _set_aside(self, folder: Path) -> None:
        above = self._runtime.config.data / SET_ASIDE
        with refusals(folder):
            OS_DISK.mkdir(above)
            folder.rename(above / f"{folder.name}.{self._runtime.now_ms()}")
            OS_DISK.fsync_dir(folder.parent)

    def make_anew(self, topic: Topic, index: int, old: Log, start: int) -> Log:
        """Removes the log of a follower, and makes an empty one that begins at `start`. Blocks. Raises StorageError."""
        folder = self._runtime.folder_of(topic.name, index)
        old.destroy()
        id = text_id(topic.id)
        log = Log.open(folder, topic.config, start_offset_hint=start)
        identity.mark(folder, id)
        return log

    def has_lost(self, topic_id: bytes, index: int) -> bool:
        return (topic_id, index) in self.lost
