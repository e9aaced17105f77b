"""How a replica of this broker whose log has failed becomes whole again, without anybody.

A log is in trouble if the disk refused a sync (it takes no more events), if bytes of it are damaged or the log could
not be opened, or if it has lost events that were acknowledged. `healing.next_step` says what is written next:

1. If it leads, it gives the lead to another replica in sync; not more often than once in ANEW_S to one that is in
   trouble, too. Without another replica in sync it goes on leading: it is all there is.
2. Once another replica leads, it leaves the ISR. A replica that takes no more events stays a candidate (in the ELR):
   what was committed is on its disk. A damaged one does not. But if the others are too few to acknowledge events, the
   damaged one stays in the ISR for up to WAIT_S, since it has all new events: another replica may come back first.
3. A damaged replica is made anew. One write makes it no candidate, makes it count as empty, and begins a new leader
   epoch, so that nobody brings it back for what it fetched before. Then its log is set aside, and copied from the
   leader. This happens at most once in ANEW_S, and not from a leader that is damaged, too. A kill between two of these
   steps leaves a replica that is no candidate, and is empty or noted as damaged.
4. A log that takes no more events is opened anew if the disk takes a sync again. This is tried after RETRY_S, or as
   soon as a data folder that was away is back, and then ever more seldom (up to ANEW_S). If the log has lost events
   then, the replica is no candidate any more, in a new leader epoch, and goes on with step 3; it never leads. A replica
   that still leads, since nobody else can, begins a new leader epoch before its log is opened.
5. When it is in sync again, what was set aside is removed; but not a log that had lost events: if there was an unclean
   election, people may look for them there. Nor is a log that has committed events which its leader lacks.

A replica that is whole, but has committed events that its leader lacks, takes the lead: ZooKeeper was given older data,
in which its leader was still in sync (follower.py).

Each replica is cared for by itself: a disk that hangs where a log is opened anew keeps no other replica waiting.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.broker.replication.assignments import Assignments
from krappy.broker.replication.replica_logs import ReplicaLogs
from krappy.broker.topics.topic import Topic
from krappy.broker.tree_changes import change_registration
from krappy.core.cluster import znodes
from krappy.core.cluster.healing import Deed, LogTrouble, lead_anew, next_step, take_over
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.roles import Role
from krappy.core.cluster.tree import RefusedMulti
from krappy.errors import ConnectionLost, KrappyError, StorageError
from krappy.store.local_replicas import ReplicaId
from krappy.store.reading import NO_CLAIM
from krappy.waiting import HANGS_S, Errands, subscribed

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import MembershipPort

LOOK_S = 0.5
WAIT_S = 600.0  # for which a damaged replica stays in an ISR that would be too small without it
ANEW_S = 600.0  # between two times that a replica is made anew, or that a damaged one gives the lead away
MOST_TOLD = 1000  # replicas in trouble that a broker's registration names
RETRY_S = 30.0  # until a log is opened anew; twice as long after each failure, up to ANEW_S


class Care:
    """What is done for one replica. Times are seconds of trio's clock."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.led_until = -ANEW_S  # when it gave the lead away last
        self.anew = -ANEW_S  # when it was made anew last
        self.pause = RETRY_S
        self.retry = now + RETRY_S  # when its log may be opened anew
        self.is_noted = False
        self.removes_aside = False

    def failed(self, now: float) -> None:
        """To be called before its log is opened anew, even if that succeeds: the log may fail again at once."""
        self.pause = min(ANEW_S, 2 * self.pause)
        self.retry = now + self.pause

    def is_over(self, now: float) -> bool:
        return now >= max(self.retry, self.anew + ANEW_S, self.led_until + ANEW_S)


class FailedLogs:
    """`rebuilt`: how many replicas were made anew."""

    def __init__(self, runtime: Runtime, cluster: MembershipPort, assignments: Assignments, logs: ReplicaLogs) -> None:
        self._runtime, self._cluster, self._assignments, self._logs = runtime, cluster, assignments, logs
        self._cares: dict[ReplicaId, Care] = {}
        self._healing: set[ReplicaId] = set()  # replicas that were in trouble, and are not in sync again yet
        self._back = -math.inf  # when the data folder came back

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            errands: Errands[ReplicaId] = Errands(nursery, HANGS_S, lambda _: None)
            with subscribed([(self._runtime.room.moved, self._see_folder)]):
                while True:
                    await trio.sleep(LOOK_S)
                    await self._look(errands)

    def _see_folder(self) -> None:
        """The data folder is away, or back: then nothing is wrong with the disk."""
        if not self._runtime.room.away:
            self._back = trio.current_time()
            for care in self._cares.values():
                care.pause, care.retry = RETRY_S, self._back

    async def _look(self, errands: Errands[ReplicaId]) -> None:
        there = self._runtime.topics.by_id
        self._cares = {key: care for key, care in self._cares.items() if key[0] in there}
        self._healing &= self._cares.keys()
        concerned = [
            (topic, partition, key)
            for topic in self._runtime.topics.values()
            for partition in topic.local.values()
            if self._trouble(key := (topic.id, partition.index), partition) is not None or key in self._cares
        ]
        with suppress(ConnectionLost, StorageError):
            await self._tell({str(partition): self._trouble(key, partition) for _, partition, key in concerned})
        await errands.run({each[2]: partial(self._look_at, *each) for each in concerned})

    async def _look_at(self, topic: Topic, partition: Partition, key: ReplicaId) -> None:
        trouble = self._trouble(key, partition)
        # If another broker has changed the state, or ZooKeeper is away, the next look tries again.
        with suppress(RefusedMulti, ConnectionLost, StorageError):
            if trouble is not None:
                await self._take_care(topic, partition, key, trouble)
            elif key in self._cares:
                await self._look_after(topic, partition, key)

    async def _tell(self, troubles: Mapping[str, LogTrouble | None]) -> None:
        """Lets all brokers know which replicas here are in trouble: people ask any of them. `troubles`: by partition;
        None: it is in none any more."""
        known = sorted((name, str(trouble)) for name, trouble in troubles.items() if trouble is not None)
        spoiled = dict(known[:MOST_TOLD])
        mine = self._cluster.image.brokers.get(self._runtime.id)
        if mine is not None and mine.epoch == self._cluster.epoch and mine.spoiled != spoiled:
            tell = partial(znodes.spoiled, replicas=spoiled)
            await change_registration(self._cluster, self._runtime.id, tell)

    def _trouble(self, key: ReplicaId, partition: Partition) -> LogTrouble | None:
        if partition.gone is not None and not partition.offline:
            return None  # it is closed
        if key in self._logs.lost:
            return LogTrouble.LOST
        if partition.spoiled:
            return LogTrouble.DAMAGED
        if partition.log_failed:
            return LogTrouble.REFUSES
        return LogTrouble.AHEAD if self._assignments.ahead(key) else None

    def _why(self, key: ReplicaId, partition: Partition) -> str:
        return partition.log_failed or partition.spoiled or self._assignments.ahead(key)

    def _found(self, topic: Topic, index: int) -> TopicImage | None:
        found = self._cluster.image.topics.get(topic.name)
        known = found is not None and found.id == topic.id and index < len(found.partitions)
        return found if known and self._cluster.epoch >= 0 else None

    async def _take_care(self, topic: Topic, partition: Partition, key: ReplicaId, trouble: LogTrouble) -> None:
        now, index = trio.current_time(), partition.index
        found = self._found(topic, index)
        if found is None:
            return
        care = self._cares.get(key)
        if care is None:
            care = self._cares[key] = Care(now)
        if key not in self._healing:
            self._healing.add(key)
            soon = now < self._back + RETRY_S
            care.since, care.retry = now, now if soon else max(care.retry, now + care.pause)
            partition.report("replica_spoiled", trouble=str(trouble), why=self._why(key, partition))
        if trouble is LogTrouble.AHEAD:
            operations = take_over(self._cluster.image, found, index, self._runtime.id, *self._assignments.claim(key))
            if operations:
                await self._cluster.multi(operations)
                text = "the last leader lacks committed events: ZooKeeper was given older data"
                partition.report("lead_taken_over", leader=partition.leader, text=text)
            return
        if trouble is LogTrouble.DAMAGED and partition.log.damage and not care.is_noted:
            care.is_noted = True
            with suppress(StorageError):  # then the next start may have to find it again
                await self._runtime.in_thread(lambda: self._logs.note_damage(partition.log))
        acknowledges = not partition.log_failed
        step = next_step(
            *(self._cluster.image, found, index, self._runtime.id, trouble),
            empties=now >= care.anew + ANEW_S,
            waits=acknowledges and now < care.since + WAIT_S,
            again=not acknowledges or now >= care.led_until + ANEW_S,
        )
        if step is not None:
            if step.deed is not Deed.BEGIN_ANEW:
                leads = step.deed is Deed.HAND_OVER
                partition.report("failed_log_left", leads=leads, why=partition.log_failed or partition.spoiled)
            await self._cluster.multi(step.operations)
            if trouble is LogTrouble.LOST:
                self._logs.lost.pop(key, None)
            if step.deed is Deed.HAND_OVER:
                care.led_until = now
            elif step.deed is Deed.BEGIN_ANEW:
                care.anew = now
                await self._begin_anew(topic, partition, care)
        elif partition.log_failed and trouble is not LogTrouble.LOST and now >= care.retry:
            care.failed(now)
            if await self._tried(partition, care.retry - now, self._reopen(found, topic, partition)):
                partition.report("log_reopened")

    async def _reopen(self, found: TopicImage, topic: Topic, partition: Partition) -> bool:
        await self._assignments.try_disk(topic, partition)
        if partition.role is Role.LEADER:
            operations = lead_anew(found, partition.index, self._runtime.id)
            if not operations:
                return False
            await self._cluster.multi(operations)
            await partition.rest()
        return await self._assignments.reopen(topic, partition)

    async def _begin_anew(self, topic: Topic, partition: Partition, care: Care) -> None:
        why, size, log = partition.spoiled, partition.size, partition.log
        log.is_parted |= log.claim != NO_CLAIM  # nobody knows yet whether its leader has all of its events
        care.removes_aside = not (log.lost or log.is_parted)
        if await self._tried(partition, ANEW_S, self._assignments.replace(topic, partition)):
            self._runtime.measures.rebuilt_replicas += 1
            partition.report("replica_begins_anew", why=why, bytes=size)

    async def _tried(self, partition: Partition, next_s: float, work: Awaitable[bool]) -> bool:
        try:
            return await work
        except KrappyError as error:
            partition.report("replica_waits", error, seconds=next_s)
            return False

    async def _look_after(self, topic: Topic, partition: Partition, key: ReplicaId) -> None:
        """For a replica that is in no trouble any more."""
        found = self._found(topic, partition.index)
        if found is None:
            return
        care = self._cares[key]
        if key in self._healing and self._runtime.id in found.partitions[partition.index].state.isr:
            self._healing.discard(key)
            care.is_noted = False
            if care.removes_aside:
                await self._tried(partition, math.inf, self._assignments.remove_aside(topic, partition))
            partition.report("replica_whole")
        if key not in self._healing and care.is_over(trio.current_time()):
            self._cares.pop(key, None)
