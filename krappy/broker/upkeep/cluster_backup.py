"""The backup of a cluster: what each broker does for it. `krappy backup` asks all of them, in these steps.

1. Each broker begins. From then on it opens and closes no topic, removes nothing from a log, and decides no transaction
   and no staged job.
2. Each notes how far the partitions that it leads are committed; first the partitions that say what is decided, then
   those of groups, then all. So what is decided is in the logs, or is done again after a restore; and a group has come
   no further than the logs.
3. Each decides again, links the files of all its logs, and goes on. The linked files have at least what was noted: the
   replicas in sync had it. What is decided now is behind that.

If a broker dies between these steps, or stands still, the program notices that, and begins the backup anew. Whatever
the program does, nobody waits for a decision longer than `DECIDING_S`, or for a topic longer than `LONGEST_S`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.coordinated.internal_tables import InternalTables
from krappy.broker.name_locks import NameLocks, everything
from krappy.broker.topics.internal_topics import JOBS, TRANSACTIONS
from krappy.broker.upkeep.backup import MOST_HELD, Hold, take_logs
from krappy.core.cluster import paths
from krappy.core.cluster.roles import Role
from krappy.errors import InvalidRequest, KrappyError, Overloaded
from krappy.store.local_replicas import DIRECTORY
from krappy.types import text_id
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.coordinators import Coordinators
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.topic import Topic

DECIDING_S = 10.0  # seconds from the beginning until the ends are noted
LONGEST_S = 120.0  # seconds until the files are linked
LOOK_S = 0.05  # between two looks: nothing signals that a lease begins
SETTLE_S = 5.0  # for which one request waits for what is being committed
DECIDED = (TRANSACTIONS, JOBS)  # what is kept in these is acted upon once it is committed
ROOTS = ("/cluster", paths.TOPICS, paths.CONFIG, "/security", paths.PRODUCER_IDS)  # what a backup has of the tree
TURN = 100  # partitions that are looked at before others have their turn
AT_ONCE = 100  # znodes that are read at a time
TREE = "cluster/tree.json"  # the file of the backup that has them: base64 by path


class NotedEnd(NamedTuple):
    """Everything before `end` was committed, as the leader of this epoch knows."""

    topic: str
    partition: int
    leader_epoch: int
    end: int


class BegunBackup:
    """A backup that a connection has begun."""

    def __init__(self, runtime: Runtime, locks: NameLocks, coordinators: Coordinators) -> None:
        self._runtime, self._locks, self._coordinators = runtime, locks, coordinators
        self._stands = trio.Event()
        self._waiting = trio.CancelScope()  # around the waits for what others are doing
        self._moved = Signal()
        self._noted = self._closed = False
        self.is_over = False

    async def begin(self) -> None:
        """Returns once step 1 is done. Raises InvalidRequest when that takes too long, Overloaded, ShuttingDown."""
        self._runtime.check_taking()
        if self._runtime.decisions.begun >= MOST_HELD:
            raise Overloaded(f"{MOST_HELD} backups are begun already; one of them has to be taken first")
        self._runtime.spawn(self._stand)
        await self._stands.wait()
        self.check()

    async def _stand(self) -> None:
        runtime = self._runtime
        self._waiting.deadline = trio.current_time() + DECIDING_S
        runtime.decisions.begun += 1

        def ended() -> bool:
            return self._closed or runtime.stopped

        try:
            with self._waiting:
                async with everything(runtime.shrinking, self._locks):
                    with runtime.decisions.closed():
                        self._stands.set()
                        left = max(0.0, self._waiting.deadline - trio.current_time())
                        await wait_any([self._moved, runtime.stopping], lambda: self._noted or ended(), left)
                    if self._noted:
                        await wait_any([self._moved, runtime.stopping], ended, LONGEST_S)
        finally:
            runtime.decisions.begun -= 1
            self.is_over = True
            self._stands.set()

    def check(self) -> None:
        """Raises InvalidRequest, ShuttingDown."""
        self._runtime.check_taking()
        if self.is_over or self._closed:
            raise InvalidRequest(f"this backup is over: it was begun more than {DECIDING_S:.0f} s ago, or was taken")

    def brokers(self) -> list[tuple[int, int]]:
        """Id and epoch of each registered broker, as this one knows."""
        return [(each.id, each.epoch) for each in self._runtime.image.brokers.values()]

    def close(self) -> None:
        self._closed = True
        self._moved.fire()
        self._waiting.cancel()

    # --- how far partitions are

    async def note(self, topics: Collection[str] | None) -> list[NotedEnd]:
        """The ends of the partitions of these topics (None: all) that this broker leads, as far as it can tell them.
        Raises as `check`."""
        self.check()
        noted: list[NotedEnd] = []
        deadline = trio.current_time() + SETTLE_S
        wanted = None if topics is None else set(topics)
        incomplete = {
            (name, index)
            for name, tables in self._coordinators.loaded.items()
            if isinstance(tables, InternalTables)
            for index in tables.incomplete
        }  # just after a restored folder has joined: groups that are still in the folder would not be in the backup
        for number, (topic, partition) in enumerate(self._local()):
            if number % TURN == 0:
                await trio.lowlevel.checkpoint()
            if (wanted is not None and topic.name not in wanted) or partition.role is not Role.LEADER:
                continue
            if (topic.name, partition.index) in incomplete:
                continue
            settled = False
            with trio.CancelScope(deadline=deadline):
                settled = await _settle(partition)
            if settled:
                noted.append(NotedEnd(topic.name, partition.index, partition.epoch, partition.high_watermark))
        self.check()
        return noted

    def _local(self) -> Iterator[tuple[Topic, Partition]]:
        for topic in list(self._runtime.topics.values()):
            for partition in list(topic.local.values()):
                yield topic, partition

    # --- files

    async def hold(self, *, tree: bool) -> Hold:
        """Links the files of all logs, and ends what was begun. `tree`: adds what the cluster's tree has. Raises
        StorageError, ConnectionLost, Overloaded, and as `check`."""
        self.check()
        self._noted = True
        self._moved.fire()
        runtime = self._runtime
        await self._catch_up()
        files = {TREE: await _read_tree(runtime)} if tree else {}
        rows = [
            {
                "topic": topic.name,
                "topic_id": text_id(topic.id),
                "partition": partition.index,
                "high_watermark": -1 if partition.offline else partition.high_watermark,
            }
            for topic, partition in self._local()
        ]
        directory = (runtime.meta.get(DIRECTORY) or b"").decode()
        held = await take_logs(runtime, {"broker": runtime.id, "directory": directory, "partitions": rows}, files)
        try:
            self.check()
        except KrappyError:
            held.close()
            raise
        self.close()
        return held

    async def _catch_up(self) -> None:
        """Waits until this broker's followers have learned that what they have is committed, as what was noted is."""
        with trio.move_on_after(SETTLE_S / 2):
            for _, partition in self._local():
                if partition.role is Role.FOLLOWER:
                    end = partition.log.end_offset
                    await wait_any([partition.moved], lambda at=end, of=partition: of.high_watermark >= at)  # type: ignore[misc]


async def _settle(partition: Partition) -> bool:
    """Waits until this leader can tell how far it is committed. False: it does not lead any more."""

    def is_known() -> bool:
        return partition.role is not Role.LEADER or _is_sure(partition)

    while not is_known():
        await wait_any([partition.moved, partition.grown], is_known, LOOK_S)
    if partition.topic in DECIDED:
        await partition.appender.idle()
        end = partition.log.end_offset
        await wait_any([partition.moved], lambda: partition.high_watermark >= end)
    return _is_sure(partition)


def _is_sure(partition: Partition) -> bool:
    return partition.role is Role.LEADER and partition.gone is None and partition.is_sure_leader()


async def _read_tree(runtime: Runtime) -> bytes:
    """Raises ConnectionLost, StorageError."""
    found: dict[str, str] = {}
    at = list(ROOTS)
    failed: list[KrappyError] = []

    async def read_some() -> None:
        while at and not failed:
            path = at.pop()
            try:
                znode = await runtime.store.read(path)
                below = await runtime.store.children(path)
            except KrappyError as error:
                failed.append(error)
                return
            if znode is not None:
                found[path] = base64.b64encode(znode.data).decode()
                at.extend(f"{path}/{name}" for name in below)

    while at and not failed:
        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, len(at))):
                nursery.start_soon(read_some)
    if failed:
        raise failed[0]
    return json.dumps(found).encode()
