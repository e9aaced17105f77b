"""All share groups' leases at this broker (KIP-932), and the share sessions of its connections.

The coordinator has the members of a share group, and what they are assigned (kafka_groups/share.py). The leader of a
partition has what is here: a group begins to read a partition with the first ShareFetch for it.

Sessions, and what they remember of partitions, are bounded for all users together. When there is no room for more, a
session of the user who has most ends, unless that is the one who asks: its member begins a new one. So nobody keeps
others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import trio

from krappy.broker.groups.share_group import LeasedPartition, ShareLeases, ShareSession
from krappy.broker.groups.share_keepers import ShareKeepers
from krappy.broker.groups.share_writer import PATIENCE_S
from krappy.broker.name_locks import NameLocks
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share import ShareRules
from krappy.core.kafka.share_state import ShareState
from krappy.core.leases import Leases
from krappy.errors import KrappyError, NotLeader, StorageError
from krappy.ports import PositionFacts
from krappy.ports.audit import whose
from krappy.ports.shares import Opener, PartitionId

if TYPE_CHECKING:
    from krappy.broker.groups.group_keeper import GroupKeeper
    from krappy.broker.groups.keeping import At
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

FINAL, INITIAL = -1, 0  # epochs of a request that ends a session, and of one that begins it
LAST_EPOCH = 2**31 - 1
MEMORY_SHARE = 8  # what sessions remember of partitions may take 1/MEMORY_SHARE of the memory budget, in addition to it
EACH = 300  # bytes that count for each partition of each session
FEW = 16  # sessions that end in one turn: each member may have acquired records in all partitions of its group
Opened = LeasedPartition | KrappyError


class SharePartitions:
    """`rules_of`: a group's rules."""

    def __init__(self, runtime: Runtime, keeper: GroupKeeper, keepers: ShareKeepers) -> None:
        self.rules_of: Callable[[str], ShareRules]
        self._runtime, self._keeper, self._keepers = runtime, keeper, keepers
        self._groups: dict[str, ShareLeases] = {}
        self._locks = NameLocks()  # by group: one reads states at a time
        self.sessions = 0
        self._most = runtime.config.group_share_max_share_sessions
        self._most_parts = runtime.config.memory_bytes // MEMORY_SHARE // EACH

    # --- life

    async def close(self) -> None:
        """Waits until all is written, unless the disk refuses."""
        with trio.move_on_after(PATIENCE_S):
            for group in self.all():
                await group.writer.until_idle()

    def remove(self, topic: str) -> None:
        """The topic was deleted."""
        for group in self.all():
            group.remove(topic)

    def all(self) -> list[ShareLeases]:
        return [*self._groups.values()]

    def _group(self, name: str) -> ShareLeases:
        group = self._groups.get(name)
        rules = self.rules_of(name)
        if group is None:
            self._keeper.check_share_room(whose())
            group = ShareLeases(self._runtime, self._keeper, self._keepers, name, rules, self._end)
            self._groups[name] = group
            self._keeper.room.places.charge(group.owner, 1)  # a group counts as one
        group.adopt(rules)
        return group

    def _end(self, group: ShareLeases, why: KrappyError | None = None) -> None:
        """The group is not here any more. `why`: None: it has no session."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
            self._keeper.room.places.charge(group.owner, -1)
            self.sessions -= len(group.sessions)
            text = f"share group '{group.name:.249}' has no session at this broker any more"
            group.end(why or Refused(Fault.SHARE_SESSION_NOT_FOUND, text))

    def delete(self, name: str) -> None:
        """The group was deleted."""
        if name in self._groups:
            self._groups[name].delete(Refused(Fault.GROUP_ID_NOT_FOUND, f"the group '{name:.249}' was deleted"))

    # --- positions

    async def open(self, group: ShareLeases, partitions: Mapping[PartitionId, Partition]) -> dict[PartitionId, Opened]:
        """The group's leases in these partitions, which this broker leads. Where the group has not begun to read, it
        begins, durably. A partition that fails has its error instead: UnknownTopic, NotLeader, StorageError. Raises
        Refused, GROUP_ID_NOT_FOUND; CoordinatorNotAvailable, NotCoordinator, Overloaded."""
        opened: dict[PartitionId, Opened] = {}
        async with self._locks.of(group.name):
            epochs = {id: partition.epoch for id, partition in partitions.items()}
            states = await self._keepers.read(group.name, epochs)
            for id, partition in partitions.items():
                state = states[id]
                try:
                    if isinstance(state, KrappyError):
                        raise state
                    opened[id] = await self._open(group, id, partition, state)
                except KrappyError as error:
                    fenced = isinstance(error, Refused) and error.fault is Fault.FENCED_LEADER_EPOCH
                    opened[id] = partition.deposed() if fenced else error
            there = [shared for shared in opened.values() if isinstance(shared, LeasedPartition)]
            failed = await group.durable(shared for shared in there if shared.begins).wait()
            opened |= {shared.id: why for shared, why in failed.items()}
        return opened

    async def _open(
        self, group: ShareLeases, id: PartitionId, partition: Partition, state: ShareState
    ) -> LeasedPartition:
        """What the group has in a partition, by a state that was read now."""
        found = group.shared.get((partition.topic, partition.index))
        if (
            found is not None
            and found.partition is partition
            and found.stands
            and found.state_epoch == state.state_epoch
        ):
            return found
        leases = self._leases(group, partition, state) if state.leases else None
        if leases is None:
            leases = group.new_leases(await self._start(group.rules, partition))
        self._keeper.check_share_room(whose())
        if partition.elsewhere is not None:
            raise partition.elsewhere
        if partition.epoch != state.leader_epoch:
            raise partition.deposed()
        if group.ended is not None:
            raise group.ended
        if found is not None:
            group.lose(found, NotLeader(f"{partition}: the group was moved, or read by another leader"))
        shared = group.add(partition, id, state, leases)
        shared.begins = not state.leases
        shared.trim()
        if shared.begins or leases.dead:  # a broker that was killed did not settle its dead events
            shared.changed()
        return shared

    def _leases(self, group: ShareLeases, partition: Partition, state: ShareState) -> Leases:
        try:
            return group.load_leases(state.leases)
        except ValueError as error:
            raise StorageError(f"the state of share group '{group.name}' in {partition}: {error}") from error

    async def _start(self, rules: ShareRules, partition: Partition) -> int:
        if isinstance(rules.start, int):
            return await partition.offset_at(self._runtime.now_ms() - rules.start)
        if rules.start == "earliest":
            return partition.start_offset
        return partition.last_stable_offset if rules.committed else partition.high_watermark

    def describe(self, name: str) -> dict[At, PositionFacts]:
        """The group's positions in the partitions that it reads here now."""
        group = self._groups.get(name)
        return {} if group is None else {at: shared.describe() for at, shared in sorted(group.shared.items())}

    def held(self, name: str) -> dict[str, int]:
        """How many records each member of a group has acquired here."""
        group = self._groups.get(name)
        return {} if group is None else group.held()

    # --- sessions

    def connect(self) -> ShareConnection:
        return ShareConnection(self._runtime, self)

    def begin(self, name: str, member: str, opener: Opener) -> tuple[ShareLeases, ShareSession]:
        """A new session. Raises Refused, Overloaded."""
        before = self._groups.get(name)
        if before is not None and member in before.sessions:
            self.close_session(before, before.sessions[member], seen=False)
        if self.sessions >= self._most and not self._one_gives_way(opener.owner, 1, lambda session: 1):
            raise Refused(Fault.SHARE_SESSION_LIMIT_REACHED, f"{self._most} share sessions are open at this broker")
        group = self._group(name)
        self.sessions += 1
        return group, group.open_session(member, opener)

    def resume(self, name: str, member: str, epoch: int, opener: Opener) -> tuple[ShareLeases, ShareSession]:
        """A session that `opener` has opened, for its next request. Raises Refused."""
        group = self._groups.get(name)
        session = None if group is None else group.sessions.get(member)
        if group is None or session is None or session.opener != opener:
            raise Refused(Fault.SHARE_SESSION_NOT_FOUND, "there is no such share session at this broker")
        if epoch not in (FINAL, session.epoch):
            text = f"the next request of the share session must have epoch {session.epoch}, not {epoch}"
            raise Refused(Fault.INVALID_SHARE_SESSION_EPOCH, text)
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        group.adopt(self.rules_of(name))
        return group, session

    def make_room(self, session: ShareSession, more: int) -> None:
        """Raises Refused when a session can't remember so many more partitions."""
        while (there := sum(len(each.parts) for group in self.all() for each in group.sessions.values())) + more > (
            self._most_parts
        ):
            if not self._one_gives_way(session.opener.owner, more, lambda each: len(each.parts)):
                text = f"share sessions have {there} partitions; memory_bytes allows {self._most_parts}"
                raise Refused(Fault.SHARE_SESSION_LIMIT_REACHED, text)

    def _one_gives_way(self, owner: str, more: int, size: Callable[[ShareSession], int]) -> bool:
        """Ends the largest session of the user whose sessions have most, if that is more than `owner` has together with
        `more`."""
        held: Counter[str] = Counter()
        largest: dict[str, tuple[ShareLeases, ShareSession]] = {}
        for group in self.all():
            for session in group.sessions.values():
                whose = session.opener.owner
                held[whose] += size(session)
                if whose not in largest or size(session) > size(largest[whose][1]):
                    largest[whose] = group, session
        whose = max(held, key=lambda each: held[each], default=owner)
        if held[whose] <= held[owner] + more:
            return False
        self.close_session(*largest[whose], seen=True)
        return True

    def close_session(self, group: ShareLeases, session: ShareSession, *, seen: bool) -> None:
        if not session.closed:
            self.sessions -= 1
            group.close_session(session, seen=seen)


class ShareConnection:
    """The share sessions of one connection. When it ends, they end, and what their members have acquired goes to
    others."""

    def __init__(self, runtime: Runtime, owner: SharePartitions) -> None:
        self._runtime, self._owner = runtime, owner
        self._sessions: dict[ShareSession, ShareLeases] = {}

    def session(self, name: str, member: str, epoch: int, opener: Opener) -> tuple[ShareLeases, ShareSession]:
        """The session that a request of this epoch belongs to. `opener`: who sends it. Raises Refused, Overloaded."""
        if epoch == INITIAL:
            group, session = self._owner.begin(name, member, opener)
        else:
            group, session = self._owner.resume(name, member, epoch, opener)
        session.move_to(self)
        self._sessions[session] = group
        return group, session

    def forget(self, session: ShareSession) -> None:
        self._sessions.pop(session, None)

    def end(self, group: ShareLeases, session: ShareSession, *, seen: bool) -> None:
        """As `ShareLeases.close_session`."""
        self._owner.close_session(group, session, seen=seen)

    def make_room(self, session: ShareSession, more: int) -> None:
        """As `SharePartitions.make_room`."""
        self._owner.make_room(session, more)

    async def open(self, group: ShareLeases, partitions: Mapping[PartitionId, Partition]) -> dict[PartitionId, Opened]:
        return await self._owner.open(group, partitions)

    def close(self) -> None:
        """Ends them; more than a few in several turns."""
        if len(self._sessions) > FEW and not self._runtime.stopped:
            self._runtime.spawn(self._close_with_turns)
        else:
            self._close(len(self._sessions))

    async def _close_with_turns(self) -> None:
        try:
            while self._sessions:  # another connection may go on with one meanwhile
                self._close(FEW)
                await trio.lowlevel.checkpoint()
        finally:
            self._close(len(self._sessions))

    def _close(self, count: int) -> None:
        for session, group in [*islice(self._sessions.items(), count)]:
            self._owner.close_session(group, session, seen=True)
