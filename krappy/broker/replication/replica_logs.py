"""The logs of this broker's replicas: how a log is opened of which other brokers have copies, and how another log takes
its place.

If a log has lost acknowledged events, its broker takes itself out of the partition's candidates before it registers. If
a log is damaged or can't be opened, it does not: what the log has may be all there is. In both cases the log stays
where it is until another replica leads (failed_logs.py); only then it is set aside, and copied anew. The folder of
another topic that had this name is set aside as well.

    DATA/set-aside/<topic>-<n>.<time>/    such a log, for people to look into; it can be deleted

The last log of a replica that was made anew stays there until the copy is in sync, if the disk has room for both. A
log with committed events that its leader lacks gets a name that ends with `.parted`, and nobody removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from krappy.broker.partition.replica import Standing
from krappy.broker.topics.opening import LogPlace, open_logs
from krappy.broker.topics.topic import Topic
from krappy.core.cluster.registration import Loss
from krappy.errors import KrappyError, StorageError
from krappy.store import identity, loss
from krappy.store.disk import NO_DESCRIPTOR, OS_DISK
from krappy.store.format import LOG, TEMPORARY
from krappy.store.local_replicas import LocalReplicas, ReplicaId
from krappy.store.log import Log
from krappy.store.loss import Trouble
from krappy.store.offline import OfflineLog
from krappy.store.refusals import refusals
from krappy.types import text_id

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

SET_ASIDE = "set-aside"
PARTED = ".parted"
PROBE = f"probe{TEMPORARY}"
Wanted = tuple[Topic, int, int]  # topic, partition, the number of its view


class ReplicaLogs:
    """`lost`: the replicas whose events this broker may have lost, until nobody counts on it for them."""

    def __init__(self, runtime: Runtime, replicas: LocalReplicas) -> None:
        self._runtime = runtime
        self.replicas = replicas
        self.lost: dict[ReplicaId, Loss] = {}

    async def open(self, wanted: Sequence[Wanted]) -> list[tuple[Log, Standing]]:
        """Opens these logs, and makes those that are missing. Raises StorageError when the disk refuses them all."""
        await self._runtime.in_thread(lambda: self._note(wanted))
        logs = await self._open([self._place(*each) for each in wanted])
        found: list[tuple[Log, Standing]] = []
        for each, log in zip(wanted, logs, strict=True):
            found.append((log, await self._runtime.in_thread(lambda each=each, log=log: self._standing(each, log))))  # type: ignore[misc]
        return found

    def _note(self, wanted: Sequence[Wanted]) -> None:
        """Finds replicas whose folders are gone, and notes new ones before their folders are made."""
        for topic, index, number in wanted:
            folder = self._runtime.folder_of(topic.name, index)
            known, owner = (topic.id, index) in self.replicas, identity.owner(folder)
            # A log that was not made here for this topic, and does not tell whose it is, may be another topic's.
            if owner not in (None, text_id(topic.id)) or (owner is None and not known and not _is_gone(folder)):
                aside = self._set_aside(folder)
                if identity.holds_events(aside):
                    self._runtime.report("folder_unclaimed", folder=str(aside), topic_id=owner or "unknown")
            if not known and _is_gone(folder):  # an earlier version may have removed a replica, and left its record
                self._runtime.reached.forget(topic.id, [index])
            if known and _is_gone(folder) and _has_others(topic, index):
                why = f"{folder} is missing or empty"
                with refusals(folder):
                    OS_DISK.mkdir(folder)
                _note_loss(folder, why)
                self._runtime.reached.forget(topic.id, [index])
                self._lose(topic, index, number, Loss.ALL, why)
        self.replicas.note((topic.id, index) for topic, index, _ in wanted)

    def _lose(self, topic: Topic, index: int, number: int, lost: Loss, why: str) -> None:
        self.lost[topic.id, index] = lost
        self._runtime.views.drop(number)
        self._runtime.report("replica_lost", partition=f"{topic.name}-{index}", error=why)

    def _place(self, topic: Topic, index: int, number: int) -> LogPlace:
        runtime = self._runtime
        applied = 0 if (topic.id, index) in self.lost else runtime.views.applied(number)
        folder = runtime.folder_of(topic.name, index)
        reached = runtime.reached.of(topic.id, index)
        return LogPlace(f"{topic.name}-{index}", folder, topic.config, text_id(topic.id), reached, applied)

    async def _open(self, places: Sequence[LogPlace]) -> list[Log]:
        runtime = self._runtime
        return await open_logs(places, runtime.disk_limiter, runtime.report, runtime.check_taking, new=False)

    def _standing(self, wanted: Wanted, log: Log) -> Standing:
        """How far the log is committed. Also notes in the log what is wrong with it."""
        topic, index, number = wanted
        if isinstance(log, OfflineLog):
            return Standing.whole(log)
        if not _has_others(topic, index):
            loss.forget(log.folder)
            if not (log.recovery.lost or log.recovery.damage):
                with suppress(KrappyError):
                    return Standing.of(log, self._runtime.views.applied(number))
            return Standing.whole(log)
        if self.has_lost(topic.id, index) is Loss.ALL:
            return self._known(log, 0)
        applied = self._runtime.views.applied(number)
        self._learn(log, applied)
        if log.lost:
            self._lose(topic, index, number, Loss.SOME, log.lost)
        return self._known(log, 0 if log.lost else applied)

    def _learn(self, log: Log, applied: int) -> None:
        """Finds what is wrong with a log that was just opened. `applied`: its view has the events before this offset.
        A loss is on disk before anybody drops that view, which may be all that tells of it. Raises StorageError."""
        with refusals(log.folder):
            noted = loss.noted(log.folder)
        if log.recovery.lost:
            log.lost = str(log.recovery)
        elif noted is not None and noted[0] is Trouble.LOST:
            log.lost = noted[1]
        elif log.recovery.start_unknown:
            log.lost = f"nothing tells whether it began before offset {log.start_offset}: it has no checkpoint"
            _note_loss(log.folder, log.lost)
        elif applied > log.end_offset:
            log.lost = f"it ends at offset {log.end_offset}, and its table has events up to {applied - 1}"
            _note_loss(log.folder, log.lost)
        elif log.recovery.damage:
            log.damage = str(log.recovery)
        elif noted is not None:
            log.damage, log.is_parted = noted[1], noted[0] is Trouble.PARTED

    def _known(self, log: Log, applied: int) -> Standing:
        try:
            return Standing.of(log, applied)
        except KrappyError as error:
            log.damage = log.damage or str(error)
            return Standing.whole(log)

    def accept(self, log: Log) -> None:
        """Accepts what the log of a leader has lost. Blocks. Raises StorageError."""
        loss.forget(log.folder)
        log.lost = ""

    def note_damage(self, log: Log) -> None:
        """Notes the log's damage for the next start. Blocks. Raises StorageError."""
        with refusals(log.folder):
            loss.note(log.folder, Trouble.PARTED if log.is_parted else Trouble.DAMAGED, log.damage)

    # --- another one in its place

    def _set_aside(self, folder: Path, ending: str = "") -> Path:
        above = self._runtime.config.data / SET_ASIDE
        with refusals(folder):
            OS_DISK.mkdir(above)
            aside = above / f"{folder.name}.{self._runtime.now_ms()}{ending}"
            folder.rename(aside)
            OS_DISK.fsync_dir(folder.parent)
        return aside

    def replace(self, topic: Topic, index: int, old: Log) -> tuple[Log, Standing]:
        """Sets the log aside, and makes an empty one. A log that was set aside before is removed. So is this one, if
        the disk has no room for both. After an error it can be called again. Blocks. Raises StorageError."""
        folder = self._runtime.folder_of(topic.name, index)
        with refusals(folder):
            if folder.exists():
                room = shutil.disk_usage(folder).free > 2 * old.size or isinstance(old, OfflineLog)
                old.abandon()
                self._runtime.reached.forget(topic.id, [index])
                self.remove_aside(topic, index)
                aside = self._set_aside(folder, PARTED if old.is_parted else "")
                if old.is_parted:
                    text = "committed events that others lack: restore them from there, if they are wanted"
                    self._runtime.report("events_set_aside", folder=str(aside), text=text)
                elif not room:
                    self.remove_aside(topic, index)
        log = Log.open(folder, topic.config, reached=self._runtime.reached.of(topic.id, index))
        identity.mark(folder, text_id(topic.id))
        return log, Standing.whole(log)

    def remove_aside(self, topic: Topic, index: int) -> None:
        """Removes what was set aside of a replica. Blocks. Raises StorageError."""
        above = self._runtime.config.data / SET_ASIDE
        with refusals(above):
            for each in above.glob(f"{topic.name}-{index}.*"):
                if each.name.rpartition(".")[0] == f"{topic.name}-{index}" and identity.owner(each) == text_id(
                    topic.id
                ):
                    OS_DISK.remove_folder(each)

    def try_disk(self, topic: Topic, index: int) -> None:
        """Blocks. Raises StorageError if the disk takes no sync in the folder of this replica."""
        folder = self._runtime.folder_of(topic.name, index)
        with refusals(folder):
            OS_DISK.write_file(folder / PROBE, b"?")
            OS_DISK.unlink(folder / PROBE)

    def reopen(self, topic: Topic, index: int, number: int, old: Log) -> tuple[Log, Standing]:
        """Opens anew a log that took no more events. Blocks. Raises StorageError; also if the log turns out to have
        lost events: `old` and `lost` say so then."""
        folder = self._runtime.folder_of(topic.name, index)
        old.abandon()
        log = Log.open(folder, topic.config, reached=self._runtime.reached.of(topic.id, index))
        applied = self._runtime.views.applied(number)
        log.damage, log.is_parted, log.claim = old.damage, old.is_parted, old.claim
        self._learn(log, applied)
        if log.lost:
            old.lost = log.lost
            self.lost[topic.id, index] = Loss.SOME
            log.abandon()
            raise StorageError(log.lost)
        return log, self._known(log, applied)

    def make_anew(self, topic: Topic, index: int, old: Log, start: int) -> Log:
        """Removes the log of a follower, and makes an empty one that begins at `start`. Blocks. Raises StorageError."""
        folder, reached = self._runtime.folder_of(topic.name, index), self._runtime.reached
        reached.forget(topic.id, [index])
        old.destroy()
        log = Log.open(folder, topic.config, start_offset_hint=start, reached=reached.of(topic.id, index))
        identity.mark(folder, text_id(topic.id))
        return log

    def told(self) -> list[Path]:
        """To be called once nobody counts on this broker for what it has lost. Gives the folders of logs that everybody
        knows to be empty now, for `forget_losses`. Without that they are copied once more after the next start."""
        empty = [each for each, lost in self.lost.items() if lost is Loss.ALL]
        self.lost.clear()
        topics = self._runtime.topics.by_id
        return [self._runtime.folder_of(topics[id].name, index) for id, index in empty if id in topics]

    def forget_losses(self, folders: Iterable[Path]) -> None:
        """Blocks."""
        for folder in folders:
            with suppress(StorageError):
                loss.forget(folder)

    def has_lost(self, topic_id: bytes, index: int) -> Loss | None:
        return self.lost.get((topic_id, index))


def _note_loss(folder: Path, why: str) -> None:
    """On disk when it returns: before anything is done that would hide the loss from the next start."""
    with refusals(folder):
        loss.note(folder, Trouble.LOST, why)


def _is_gone(folder: Path) -> bool:
    """Whether it is missing, or has no segment. If it can't be read, its opening fails, and tells why. Raises
    StorageError when there is no descriptor to look."""
    try:
        return not any(name.endswith(LOG) for name in os.listdir(folder))
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise StorageError(f"{folder}: {error}") from error
        return False


def _has_others(topic: Topic, index: int) -> bool:
    return len(topic.image.partitions[index].replicas) > 1
