"""What this broker is assigned by the cluster's image: it opens its replicas, takes its roles, and closes what is gone.

Each topic's change holds the topic's lock. Whatever fails is tried again. Folders are removed only for a topic whose
deletion is on record, and for a replica that a reassignment has taken away (leaving.py); a topic that the image just
does not have is closed, and its folders stay.

The disk may hang for minutes at one partition. Only that partition's role, or its topic's change, waits for it, and
other topics' new settings, since settings change one topic after another. Whatever else the cluster decides is done
meanwhile, after `HANGS_S` for each such topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.hang_limit import HangLimit
from krappy.broker.partition.follower import Follower
from krappy.broker.partition.partition import Partition
from krappy.broker.partition.replica import Standing
from krappy.broker.replication.leaving import Leaving
from krappy.broker.replication.replica_logs import ReplicaLogs, Wanted
from krappy.broker.topics.internal_topics import INTERNAL, InternalTopics
from krappy.broker.topics.topic import Topic
from krappy.core.cluster import paths
from krappy.core.cluster.claims import Claim
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.registration import pass_epoch
from krappy.core.cluster.roles import Role, role
from krappy.core.cluster.state import NOBODY, PartitionState
from krappy.core.cluster.tree import RefusedMulti
from krappy.errors import KrappyError, UnknownTopic
from krappy.store.local_replicas import ReplicaId
from krappy.store.log import Log
from krappy.waiting import HANGS_S, Errands, Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.cluster_topics import ClusterTopicChanges
    from krappy.ports.cluster import LogPeersPort, MembershipPort
    from krappy.ports.replication import FollowerPort

RETRY_S = 1.0
AT_ONCE = 16  # roles that are taken at the same time: each may wait for a sync


class Assignments:
    """`follow(followers)` is told of all partitions that this broker follows, after each change."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: MembershipPort,
        changes: ClusterTopicChanges,
        logs: ReplicaLogs,
        internal: InternalTopics,
        follow: Callable[[Iterable[FollowerPort]], None],
        peers: LogPeersPort,
    ) -> None:
        self._runtime, self._cluster, self._changes, self._logs = runtime, cluster, changes, logs
        self._internal = internal
        self._follow = follow
        self._followers: dict[ReplicaId, Follower] = {}
        self._taken: dict[ReplicaId, tuple[int, int]] = {}  # (version of the state, broker epoch) of the last role
        self._limit = HangLimit(AT_ONCE)
        self._renewed = Signal()
        self._again = False  # a partition has another log, and must take its role with it
        self.leaving = Leaving(runtime, cluster, logs.replicas, peers, self._look_soon)
        self._errands: Errands[str | ReplicaId]  # changes of topics, and roles

    async def open(self) -> None:
        """Opens all topics, before this broker registers. The image moves on meanwhile: `run` follows what becomes of a
        topic then. A topic is left to `run`, too, if an earlier topic of its name was deleted and is not removed here
        yet: groups' positions in the earlier topic must go first, and groups are not open yet. Raises StorageError."""
        seen, dead = None, set[str]()
        for name in list(self._cluster.image.topics):
            self._runtime.check_taking()
            async with self._changes.locks.of(name):  # so that the defaults of topics stay as they are meanwhile
                if (image := self._cluster.image) is not seen:
                    seen, dead = image, {each.name for each in self._runtime.catalog.deleting()}
                if name in image.topics and name not in dead:
                    with suppress(UnknownTopic):  # deleted just now
                        await self._open(image.topics[name])

    async def run(self) -> None:
        """Until cancelled."""
        cluster = self._cluster
        async with trio.open_nursery() as nursery:
            self._errands = Errands(nursery, HANGS_S, self._look_again)
            nursery.start_soon(self._limit.run)
            while True:
                image, epoch = cluster.image, cluster.epoch
                done = await self._look(image, epoch) and not self._errands
                self._runtime.topics.changed.fire()
                changed = partial(self._has_news, image, epoch)
                await wait_any([cluster.changed, self._renewed], changed, seconds=float("inf") if done else RETRY_S)
                self._again = False

    def _look_again(self, _: str | ReplicaId) -> None:
        if not self._errands:  # else it looks after RETRY_S: many roles may be late, and a look takes its time
            self._look_soon()

    def _look_soon(self) -> None:
        self._again = True
        self._renewed.fire()

    def _has_news(self, image: Image, epoch: int) -> bool:
        return self._again or self._cluster.image is not image or self._cluster.epoch != epoch

    async def _look(self, image: Image, epoch: int) -> bool:
        """Makes this broker do what the image says. Returns whether all of it was done."""
        topics, done = self._runtime.topics, True
        for name, gone in [each for each in topics.items() if image.names.get(each[1].id) != each[0]]:
            if topics.get(name) is gone:  # else work that was under way has removed it meanwhile
                done &= await self._try(name, partial(self._remove, gone, image))
        for found in image.topics.values():
            if found.name in INTERNAL:
                self._internal.see(found)
            topic = topics.get(found.name)
            if topic is None:
                done &= await self._try(found.name, partial(self._add, found))
            elif (differs := self._settings_differ(topic, image)) or topic.image is not found:
                before = self._runtime.shrinking.of(found.name) if differs else nullcontext()
                done &= await self._try(found.name, partial(self._change, topic, found, image), before)
        for left in self.leaving.due(image):
            done &= await self._try(image.names[left[0]], partial(self._leave, left))
        return await self._take_roles(image, epoch) and done

    async def _try(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        before: AbstractAsyncContextManager[object] = nullcontext(),  # noqa: B008  (a constant)
    ) -> bool:
        """Whether it was done. If not, it may be under way. `before`: is held, too, and entered before the topic's
        lock."""
        done = False

        async def attempt() -> None:
            nonlocal done
            try:
                async with before, self._changes.locks.of(name):
                    await work()
                done = True
            except KrappyError as error:
                self._runtime.report("assignment_waits", topic=name, error=str(error))

        return await self._errands.run({name: attempt}) and done

    # --- topics

    async def _add(self, found: TopicImage) -> None:
        await self._changes.bury_earlier(found.name)
        await self._open(found)

    async def _open(self, found: TopicImage) -> None:
        """Raises UnknownTopic if the topic was deleted meanwhile, StorageError."""
        runtime = self._runtime
        topic = await self._changes.know(found)
        await self._open_missing(topic)
        self._changes.names.add(found.name)
        runtime.topics.add(topic)
        runtime.report("topic_created", topic=found.name, partitions=topic.count)

    async def _open_missing(self, topic: Topic) -> None:
        """Opens this broker's replicas that are not open yet."""
        numbers = self._runtime.catalog.numbers.of(topic.id)
        missing = [
            index
            for index, each in enumerate(topic.image.partitions)
            if self._runtime.id in each.replicas and index not in topic.local
        ]
        if missing:
            await self._runtime.room.look()  # if the data folder is away, no folder may be made in its place
        wanted: list[Wanted] = [(topic, index, numbers[index]) for index in missing]
        opened = await self._logs.open(wanted)
        made: list[Partition] = []
        for (_, index, number), (log, standing) in zip(wanted, opened, strict=True):
            made.append(self._changes.partition(topic, index, number, log, standing))
        for partition in made:
            topic.local[partition.index] = partition
            make_log = partial(self._make_log, topic, partition)
            self._followers[topic.id, partition.index] = Follower(partition, topic.id, make_log, self._runtime.id)
        if made:
            in_order = sorted(topic.local.items())
            topic.local.clear()
            topic.local.update(in_order)
        if made or topic.strays.count != topic.count:
            topic.strays.begin(topic.count)
        for partition in made:
            partition.applier.start()

    async def _leave(self, replica: ReplicaId) -> None:
        """Removes a replica that is another broker's now."""
        await self.leaving.make_sure(replica)
        topic = self._runtime.topics.by_id.get(replica[0])
        if topic is not None and replica[1] in topic.local:
            self._changes.forget_latest(topic.local[replica[1]])
        self._followers.pop(replica, None)
        self._taken.pop(replica, None)
        self._tell_followers()
        await self.leaving.remove(replica)

    def _make_log(self, topic: Topic, partition: Partition, start: int) -> Log:
        return self._logs.make_anew(topic, partition.index, partition.log, start)

    def _settings_differ(self, topic: Topic, image: Image) -> bool:
        return topic.given != image.config(paths.TOPIC_CONFIG, topic.name)

    async def _change(self, topic: Topic, found: TopicImage, image: Image) -> None:
        if len(found.partitions) != topic.count:
            await self._changes.number(found)
        topic.see(found)
        await self._open_missing(topic)
        if self._settings_differ(topic, image):
            given = dict(image.config(paths.TOPIC_CONFIG, topic.name))
            await topic.prepare(given, topic.inherited)
            await topic.configure(given, topic.inherited)
            self._runtime.report("topic_altered", topic=topic.name, partitions=topic.count, config=given)

    async def _remove(self, topic: Topic, image: Image) -> None:
        for index in topic.local:
            self._followers.pop((topic.id, index), None)
            self._taken.pop((topic.id, index), None)
        self._tell_followers()
        # The record of a deletion goes with the last replica. So a broker without one may not see it.
        await self._changes.close(topic, is_deleted=topic.id in image.deleted or not topic.local)

    # --- roles

    async def _take_roles(self, image: Image, epoch: int) -> bool:
        """Whether every role was taken."""
        failed: list[str] = []

        async def take(topic: Topic, partition: Partition) -> None:
            async with self._limit.limiter:
                try:
                    await self._take_role(image, epoch, topic, partition)
                except KrappyError as error:
                    partition.report("assignment_waits", error)
                    failed.append(str(partition))

        in_time = await self._errands.run(
            {
                (topic.id, partition.index): partial(take, topic, partition)
                for topic in self._runtime.topics.values()
                for partition in topic.local.values()
                if self._taken.get((topic.id, partition.index)) != self._wanted(image, epoch, topic, partition)
            }
        )
        self._tell_followers()
        return in_time and not failed

    def _wanted(self, image: Image, epoch: int, topic: Topic, partition: Partition) -> tuple[int, int]:
        found = image.topics.get(topic.name)
        if found is None or found.id != topic.id or partition.index >= len(found.partitions):
            return -1, epoch
        return found.partitions[partition.index].version, epoch

    async def _take_role(self, image: Image, epoch: int, topic: Topic, partition: Partition) -> None:
        wanted = version, _ = self._wanted(image, epoch, topic, partition)
        key = topic.id, partition.index
        follower, log = self._followers.get(key), partition.log
        if follower is None:  # it was removed while it waited for its turn
            return
        if epoch < 0 or version < 0 or partition.gone is not None:
            await partition.rest()
            follower.leader = NOBODY
        else:
            found = image.topics[topic.name]
            state = found.partitions[partition.index].state
            if epoch_passed := pass_epoch(found, partition.index, log.epochs.at(log.end_offset)):
                # The partition was made anew after ZooKeeper was given older data. No leader may begin in an epoch that
                # its events here have.
                await partition.rest()
                follower.leader = NOBODY
                with suppress(RefusedMulti):  # another broker was quicker
                    await self._cluster.multi(epoch_passed)
                return
            mine = role(state, self._runtime.id, epoch)
            if (mine is Role.FOLLOWER and state.leader == NOBODY) or key in self._logs.lost:
                mine = Role.OFFLINE
            before = partition.role
            await partition.take(state, version, mine, self._runtime.id)
            if partition.role is Role.LEADER and partition.log.lost:  # by an unclean election: its log counts
                await self._runtime.in_thread(partial(self._logs.accept, partition.log))
            follower.leader = state.leader if mine is Role.FOLLOWER else NOBODY
            follower.state = state
            if partition.role is not before:
                partition.report("role_taken", role=str(mine), epoch=state.leader_epoch, leader=state.leader)
        if partition.log is log and self._followers.get(key) is follower:  # else it takes its role again, if it has one
            self._taken[key] = wanted

    def _tell_followers(self) -> None:
        self._follow([each for each in self._followers.values() if each.copies])

    def ahead(self, replica: ReplicaId) -> str:
        """Which committed events the leader of a replica here lacks; empty: none that are known."""
        found = self._followers.get(replica)
        return "" if found is None else found.ahead

    def claim(self, replica: ReplicaId) -> tuple[Claim, PartitionState]:
        """(how far the log of a replica here that is ahead is committed, or may be, the state in which it is ahead)."""
        found = self._followers[replica]
        return found.claim, found.state

    # --- another log in the place of one that failed

    async def replace(self, topic: Topic, partition: Partition) -> bool:
        """Makes an empty log for a replica that is no candidate any more, to be copied from its leader. False: it is
        not this broker's now, or leads. Raises StorageError; then it must be called again."""
        return await self._renew(topic, partition, partial(self._logs.replace, topic, partition.index, partition.log))

    async def try_disk(self, topic: Topic, partition: Partition) -> None:
        """Raises StorageError if the disk takes no sync in the folder of a replica."""
        await self._runtime.in_thread(partial(self._logs.try_disk, topic, partition.index))

    async def reopen(self, topic: Topic, partition: Partition) -> bool:
        """Opens anew the log of a replica that took no more events. Returns and raises as `replace`."""
        reopen = partial(self._logs.reopen, topic, partition.index, partition.number, partition.log)
        return await self._renew(topic, partition, reopen)

    async def _renew(self, topic: Topic, partition: Partition, make_log: Callable[[], tuple[Log, Standing]]) -> bool:
        key = topic.id, partition.index
        async with self._changes.locks.of(topic.name):
            if self._runtime.topics.get(topic.name) is not topic or topic.local.get(partition.index) is not partition:
                return False  # it was deleted, or reassigned
            if key not in self._followers or not await self._followers[key].renew(make_log):
                return False
            self._taken.pop(key, None)
        self._look_soon()
        return True

    async def remove_aside(self, topic: Topic, partition: Partition) -> bool:
        """Removes what was set aside of a replica that is whole again. Raises StorageError."""
        await self._runtime.in_thread(partial(self._logs.remove_aside, topic, partition.index))
        return True
