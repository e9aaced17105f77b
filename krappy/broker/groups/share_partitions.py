"""All share groups' leases at this broker (KIP-932), and the share sessions of its connections.

The members of a share group, and what they are assigned, are the coordinator's (kafka_groups/share.py). What is here is
of the leader of the partitions: a group begins to read a partition with the first ShareFetch for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from krappy.broker.groups.group_writer import unpack
from krappy.broker.groups.share_group import At, ShareLeases, ShareSession
from krappy.broker.groups.shared import SharedPartition
from krappy.broker.name_locks import NameLocks
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share import ShareRules
from krappy.errors import KrappyError, NotCoordinator, StorageError
from krappy.ports import PositionFacts
from krappy.store.groups import StoredGroup

if TYPE_CHECKING:
    from krappy.broker.groups.group_keeper import GroupKeeper
    from krappy.broker.groups.keeping import GroupStorage
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

FINAL, INITIAL = -1, 0  # epochs of a request that ends a session, and of one that begins it
LAST_EPOCH = 2**31 - 1
MEMORY_SHARE = 8  # what sessions remember of partitions may take 1/MEMORY_SHARE of the memory budget, in addition to it
EACH = 300  # bytes that count for each partition of each session


class SharePartitions:
    """`rules_of`: a group's rules. `is_group`: whether there is a share group of this name. `check_room`: raises
    Overloaded when one more position would be too many."""

    def __init__(
        self,
        runtime: Runtime,
        keeper: GroupKeeper,
        storage: GroupStorage,
        check_room: Callable[[], None],
    ) -> None:
        self.rules_of: Callable[[str], ShareRules]
        self.is_group: Callable[[str], bool]
        self._runtime, self._keeper, self._storage, self._check_room = runtime, keeper, storage, check_room
        self._groups: dict[str, ShareLeases] = {}
        self._kept: set[str] = set()  # groups from a time alone, which are only kept in a cluster
        self._locks = NameLocks()  # by group: one new position, change or deletion at a time
        self.sessions = 0
        self._most = runtime.config.group_share_max_share_sessions
        self._most_parts = runtime.config.memory_bytes // MEMORY_SHARE // EACH

    # --- life

    def take(self, name: str, stored: StoredGroup) -> None:
        """Goes on with what is stored; in a cluster, where nobody serves share groups, it stays as it is. Raises
        StorageError."""
        if self._runtime.in_cluster:
            self._kept.add(name)
            return
        group = self._add(name, ShareRules())
        lost: list[At] = []
        for at, packed in stored.states.items():
            topic = self._runtime.topics.get(at[0])
            if topic is None or at[1] not in topic.local:
                lost.append(at)
                continue
            try:
                leases = group.load_leases(unpack(f"the state of share group '{name}' in {at[0]}-{at[1]}", packed))
            except (ValueError, TypeError) as error:
                raise StorageError(f"the state of share group '{name}' in {at[0]}-{at[1]}: {error}") from error
            partition = topic.local[at[1]]
            if leases.frontier > partition.end_offset and not partition.offline:
                self._runtime.report("group_ahead_of_log", group=name, partition=str(partition))
                leases.cut(partition.end_offset)
            group.add(partition, leases)
        if lost:
            self._storage.delete_states(name, lost)

    def keeps(self, name: str) -> bool:
        """Whether the name is that of a share group which is only kept."""
        return name in self._kept

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        self._kept = {name for name in self._kept if not is_in(name)}
        for name in [name for name in self._groups if is_in(name)]:
            self._drop(name, NotCoordinator(f"this broker does not keep the share group '{name}' any more"))

    def _add(self, name: str, rules: ShareRules) -> ShareLeases:
        group = self._groups[name] = ShareLeases(self._keeper, name, rules)
        self._keeper.held_positions += 1  # a group counts as one
        return group

    def _drop(self, name: str, why: KrappyError | None) -> None:
        group = self._groups.pop(name)
        self._keeper.held_positions -= 1
        self.sessions -= len(group.sessions)
        group.end(why)

    def all(self) -> list[ShareLeases]:
        return [*self._groups.values()]

    def _group(self, name: str) -> ShareLeases:
        """Raises Refused, GROUP_ID_NOT_FOUND."""
        if not self.is_group(name):
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"Group {name:.249} is not a share group.")
        group = self._groups.get(name)
        rules = self.rules_of(name)
        if group is None:
            self._check_room()
            group = self._add(name, rules)
            self._keeper.writer.mark_group(group)  # before any state of it
        group.adopt(rules)
        return group

    # --- positions

    async def open(self, group: ShareLeases, partition: Partition) -> SharedPartition:
        """The group's leases in a partition, where it begins to read if it has not. Then that is durable on return.
        Raises Refused, Overloaded, StorageError."""
        at = (partition.topic, partition.index)
        found = group.shared.get(at)
        if found is not None and found.partition is partition:
            return found
        async with self._locks.of(group.name):
            found = group.shared.get(at)
            if found is not None and found.partition is not partition:
                raise Refused(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} was deleted, and made anew")
            if found is None:
                offset = await self._start(group.rules, partition)
                self._check(group, partition)
                self._check_room()
                found = group.add(partition, group.new_leases(offset))
                found.changed()
            await self._keeper.writer.durable([found], group=group).wait()
            return found

    def _check(self, group: ShareLeases, partition: Partition) -> None:
        """Raises what has become of them while something was awaited."""
        if partition.gone is not None:
            raise partition.gone
        if group.ended is not None:
            raise group.ended
        if group.gone:
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"the group '{group.name:.249}' was deleted")

    async def _start(self, rules: ShareRules, partition: Partition) -> int:
        if isinstance(rules.start, int):
            return await partition.offset_at(self._runtime.now_ms() - rules.start)
        if rules.start == "earliest":
            return partition.start_offset
        return partition.last_stable_offset if rules.committed else partition.high_watermark

    def describe(self, name: str) -> dict[At, PositionFacts]:
        """The group's positions."""
        group = self._groups.get(name)
        return {} if group is None else {at: shared.describe() for at, shared in sorted(group.shared.items())}

    def held(self, name: str) -> dict[str, int]:
        """How many records each member of a group has acquired."""
        group = self._groups.get(name)
        return {} if group is None else group.held()

    async def alter(self, name: str, moves: Sequence[tuple[Partition, int]]) -> None:
        """Moves the positions of a group without members: all is delivered anew from these offsets on. An offset
        outside a log becomes its nearest end. Durable on return. Raises Refused, Overloaded, StorageError."""
        async with self._locks.of(name):
            group = self._group(name)
            moved = []
            for partition, offset in moves:
                self._check(group, partition)
                offset = min(max(offset, partition.start_offset), partition.high_watermark)
                shared = group.shared.get((partition.topic, partition.index))
                if shared is None:
                    self._check_room()
                    shared = group.add(partition, group.new_leases(offset))
                else:
                    shared.leases.reset(offset)
                    self._keeper.reads.drop(shared)
                shared.changed()
                moved.append(shared)
            await self._keeper.writer.durable(moved, group=group).wait()

    async def forget(self, name: str, topics: Iterable[str]) -> set[str]:
        """Deletes a group's positions in these topics, durably. Gives the topics that it had any in. Raises
        StorageError."""
        async with self._locks.of(name):
            group = self._groups.get(name)
            wanted = set(topics)
            gone = [] if group is None else [at for at in group.shared if at[0] in wanted]
            if group is not None and gone:
                write = self._storage.delete_states(name, gone)
                for topic in {topic for topic, _ in gone}:
                    group.remove(topic)
                await self._storage.synced([write])
            return {topic for topic, _ in gone}

    async def delete(self, name: str) -> None:
        """Deletes all that is kept of a group here, durably. Raises StorageError; Refused in a cluster."""
        if self._runtime.in_cluster:
            text = "share groups of a cluster can't be deleted yet: it only keeps what a broker had alone"
            raise Refused(Fault.UNSUPPORTED_VERSION, text)
        async with self._locks.of(name):
            if name in self._groups:
                write = self._storage.delete(name)
                self._drop(name, None)
                await self._storage.synced([write])

    # --- sessions

    def connect(self) -> ShareConnection:
        return ShareConnection(self)

    def begin(self, name: str, member: str) -> tuple[ShareLeases, ShareSession]:
        """A new session. Raises Refused."""
        group = self._group(name)
        if member in group.sessions:
            self.close(group, group.sessions[member], seen=False)
        if self.sessions >= self._most:
            raise Refused(Fault.SHARE_SESSION_LIMIT_REACHED, f"{self._most} share sessions are open at this broker")
        self.sessions += 1
        return group, group.open_session(member)

    def resume(self, name: str, member: str, epoch: int) -> tuple[ShareLeases, ShareSession]:
        """A session that there is, for its next request. Raises Refused."""
        group = self._groups.get(name)
        session = None if group is None else group.sessions.get(member)
        if group is None or session is None:
            raise Refused(Fault.SHARE_SESSION_NOT_FOUND, "there is no such share session at this broker")
        if epoch not in (FINAL, session.epoch):
            text = f"the share session is to have epoch {session.epoch}, and the request says {epoch}"
            raise Refused(Fault.INVALID_SHARE_SESSION_EPOCH, text)
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        group.adopt(self.rules_of(name))
        return group, session

    def check_parts(self, more: int) -> None:
        """Raises Refused when sessions can't remember so many more partitions."""
        there = sum(len(session.parts) for group in self._groups.values() for session in group.sessions.values())
        if there + more > self._most_parts:
            text = f"share sessions have {there} partitions; memory_bytes allows {self._most_parts}"
            raise Refused(Fault.SHARE_SESSION_LIMIT_REACHED, text)

    def close(self, group: ShareLeases, session: ShareSession, *, seen: bool) -> None:
        if not session.closed:
            self.sessions -= 1
            group.close_session(session, seen=seen)


class ShareConnection:
    """The share sessions of one connection. When it ends, they end, and what their members have acquired goes to
    others."""

    def __init__(self, owner: SharePartitions) -> None:
        self._owner = owner
        self._sessions: dict[ShareSession, ShareLeases] = {}

    def session(self, name: str, member: str, epoch: int) -> tuple[ShareLeases, ShareSession]:
        """The session that a request of this epoch belongs to. Raises Refused."""
        group, session = (
            self._owner.begin(name, member) if epoch == INITIAL else self._owner.resume(name, member, epoch)
        )
        session.move_to(self)
        self._sessions[session] = group
        return group, session

    def forget(self, session: ShareSession) -> None:
        self._sessions.pop(session, None)

    def end(self, group: ShareLeases, session: ShareSession) -> None:
        """The member ends its session."""
        self._owner.close(group, session, seen=False)

    def check_parts(self, more: int) -> None:
        """As `SharePartitions.check_parts`."""
        self._owner.check_parts(more)

    async def open(self, group: ShareLeases, partition: Partition) -> SharedPartition:
        return await self._owner.open(group, partition)

    def close(self) -> None:
        for session, group in [*self._sessions.items()]:
            self._owner.close(group, session, seen=True)
