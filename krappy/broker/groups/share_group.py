"""The leases of one of Kafka's share groups (KIP-932) on the partitions that this broker leads, and its share sessions.

They are leases as in native groups, with other rules: a record that was delivered as often as is allowed is settled,
and goes to no dead-letter topic; and only who holds a record may acknowledge it.

Another broker may keep the states. This broker has them while the group has a session here, and while it leads the
partition in the leader epoch in which it has read them. What it acknowledges is written by share_writer.py.

A member that finds nothing waits in line, as in a native group: an event costs one wake-up, however many wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from krappy.broker.groups.group_poll import GroupPoll
from krappy.broker.groups.share_states import KIND
from krappy.broker.groups.share_writer import ShareWriter
from krappy.broker.groups.shared import LOOK_S, Owner, SharedPartition, SharedSettings
from krappy.core.cluster.roles import Role
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share import Ack, AckType, ShareRules
from krappy.core.kafka.share_state import ShareState
from krappy.core.leases import Leases
from krappy.errors import KrappyError, NotLeader
from krappy.ports import GroupPolled
from krappy.ports.audit import whose
from krappy.ports.shares import Opener, PartitionId
from krappy.waiting import Later, subscribed

if TYPE_CHECKING:
    from krappy.broker.groups.group_keeper import GroupKeeper
    from krappy.broker.groups.share_keepers import ShareKeepers
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

At = tuple[str, int]  # topic, partition
AT_ONCE = 500  # acknowledgements that are taken in one turn


class LeasedPartition(SharedPartition):
    """A partition in one share group, as its leader has it in one leader epoch. `lost`: why this broker does not have
    it any more. `begins`: nothing was kept of it when its state was read."""

    group: ShareLeases
    partition: Partition

    def __init__(
        self, group: ShareLeases, partition: Partition, id: PartitionId, state: ShareState, leases: Leases
    ) -> None:
        super().__init__(group, partition, leases, whose())
        self.id, self.epoch, self.state_epoch = id, partition.epoch, state.state_epoch
        self.version = self.durable = state.version
        self.lost: KrappyError | None = None
        self.begins = False
        self.committed = group.rules.committed

    @property
    def stands(self) -> bool:
        """Whether this broker leads the partition as it did when this was read."""
        return self.lost is None and self.partition.role is Role.LEADER and self.partition.epoch == self.epoch

    def state(self) -> ShareState:
        return ShareState(self.state_epoch, self.epoch, self.version, self.leases.dump())

    @property
    def is_sure(self) -> bool:
        return self.stands and self.partition.still_leads

    def wanted(self, now: int, *, alone: bool = True) -> int | None:
        return super().wanted(now, alone=alone) if self.stands else None

    def moved(self) -> None:
        if self.stands:
            super().moved()
        else:
            self.group.lose(self, self.partition.elsewhere or self.partition.deposed())

    def fenced(self, why: KrappyError) -> NotLeader:
        return NotLeader(f"{self.partition}: what the group has there is not this broker's any more: {why.text}")


class SessionHolder(Protocol):
    def forget(self, session: ShareSession) -> None:
        """The session has ended, or another connection uses it now."""


class ShareSession:
    """A member's session at this broker (KIP-932): the partitions that it reads, and the epoch of its next request.
    `opener`: who has opened it, and whom its partitions are for. `holder`: the connection that has used it last."""

    def __init__(self, member: str, opener: Opener) -> None:
        self.member = member
        self.opener = opener
        self.epoch = 1
        self.parts: dict[tuple[bytes, int], LeasedPartition | None] = {}  # by topic id and partition; None: not open
        self.closed = False
        self.holder: SessionHolder | None = None

    @property
    def open_parts(self) -> list[LeasedPartition]:
        return [shared for shared in self.parts.values() if shared is not None]

    def move_to(self, holder: SessionHolder | None) -> None:
        if self.holder is not None and self.holder is not holder:
            self.holder.forget(self)
        self.holder = holder


class _Waiter:
    __slots__ = ("among", "event", "session")

    def __init__(self, session: ShareSession, among: frozenset[LeasedPartition]) -> None:
        self.session = session
        self.among = among
        self.event = trio.Event()


class ShareLeases(Owner):
    """`end(group, why)`: called when the group has no session any more and all is written (`why` is None), or when it
    was deleted."""

    shared: dict[At, LeasedPartition]  # type: ignore[assignment]

    def __init__(
        self,
        runtime: Runtime,
        keeper: GroupKeeper,
        keepers: ShareKeepers,
        name: str,
        rules: ShareRules,
        end: Callable[[ShareLeases, KrappyError | None], None],
    ) -> None:
        self.keeper = keeper
        self.name = name
        self.rules = rules
        self.settings = SharedSettings(KIND, max_deliveries=rules.max_deliveries)
        self.shared = {}
        self.away: dict[At, Sequence[int]] = {}  # always empty: the states are kept elsewhere
        self.sessions: dict[str, ShareSession] = {}
        self.owner = whose()
        self.gone = False
        self.ended: KrappyError | None = None
        self.writer = ShareWriter(runtime, keepers, self)
        self._revocations = runtime.authorizer.signals
        self._end = end
        self._waiters: dict[_Waiter, None] = {}  # in the order of their coming
        self._turn = 0

    # --- its partitions

    def add(self, partition: Partition, id: PartitionId, state: ShareState, leases: Leases) -> LeasedPartition:
        shared = LeasedPartition(self, partition, id, state, leases)
        leases.limit_window(self.rules.max_locks)
        self.shared[shared.at] = shared
        self.keeper.room.places.charge(shared.owner, 1)
        partition.moved.subscribe(shared.moved)
        return shared

    def lose(self, shared: LeasedPartition, why: KrappyError) -> None:
        """This broker does not have `shared` any more."""
        if shared.lost is not None:
            return
        shared.lost, shared.gone = why, True
        shared.partition.moved.unsubscribe(shared.moved)
        self.keeper.reads.drop(shared)
        self.keeper.room.places.charge(shared.owner, -1)
        del self.shared[shared.at]
        for session in self.sessions.values():
            if session.parts.get(shared.id) is shared:
                session.parts[shared.id] = None
        self.writer.settle()
        self._wake_those(lambda waiter: shared in waiter.among)

    def as_led(self, shared: SharedPartition) -> None:
        """Nothing: what is leased here is led here."""

    def new_leases(self, floor: int) -> Leases:
        return Leases(floor, max_deliveries=self.rules.max_deliveries)

    def load_leases(self, state: Sequence[int]) -> Leases:
        """Raises ValueError for what `Leases.dump` did not give."""
        return Leases.load(state, max_deliveries=self.rules.max_deliveries)

    def adopt(self, rules: ShareRules) -> None:
        """Goes on by these rules."""
        if rules == self.rules:
            return
        before, self.rules = self.rules, rules
        self.settings = self.settings._replace(max_deliveries=rules.max_deliveries)
        for shared in self.shared.values():
            shared.leases.limit_window(rules.max_locks)
            if rules.committed != before.committed:
                shared.committed = rules.committed
                self.keeper.reads.drop(shared)
            if rules.max_deliveries != before.max_deliveries:
                shared.leases.limit_deliveries(rules.max_deliveries)
                shared.changed()

    def held(self) -> dict[str, int]:
        """How many events are leased to each member."""
        held: dict[str, int] = {}
        for shared in self.shared.values():
            for member, count in shared.leases.held().items():
                held[member] = held.get(member, 0) + count
        return held

    def remove(self, topic: str) -> list[SharedPartition]:
        """Removes a deleted topic."""
        removed = [shared for shared in self.shared.values() if shared.at[0] == topic]
        for shared in removed:
            self.lose(shared, shared.partition.elsewhere or shared.partition.deposed())
        return [*removed]

    def end(self, why: KrappyError) -> None:
        """The group is not here any more: it has no session, or it was deleted."""
        self.gone, self.ended = True, why
        for session in [*self.sessions.values()]:
            session.closed = True
            session.move_to(None)
        for shared in [*self.shared.values()]:
            self.lose(shared, why)
        self.sessions.clear()
        self.wake_all()

    def written(self) -> None:
        """Called when all is written."""
        if not (self.sessions or self.gone):
            self._end(self, None)

    def delete(self, why: KrappyError) -> None:
        """Called when nobody keeps it any more."""
        self._end(self, why)

    def changed(self, shared: LeasedPartition) -> None:  # type: ignore[override]
        self.attend(shared)
        if shared.lost is None:
            self.writer.mark(shared)

    def tell_lost(self, shared: SharedPartition) -> None:
        self.keeper.tell_lost(shared)

    def attend(self, shared: SharedPartition) -> None:
        """Settles what was delivered too often, and sets the alarm for the next end of a lease."""
        leases = shared.leases
        if leases.dead:
            for grave in leases.graves():
                leases.bury(grave.first, grave.last)
        if leases.due is not None:
            self.keeper.alarms.set(shared, leases.due)

    # --- sessions

    def open_session(self, member: str, opener: Opener) -> ShareSession:
        """A new session of a member. One that it had ends."""
        if member in self.sessions:
            self.close_session(self.sessions[member], seen=False)
        session = self.sessions[member] = ShareSession(member, opener)
        return session

    def close_session(self, session: ShareSession, *, seen: bool) -> None:
        """Releases what the member has acquired. `seen`: the member may have worked on these records, like one that has
        died. If not, their delivery does not count."""
        if session.closed:
            return
        session.closed = True
        session.move_to(None)
        del self.sessions[session.member]
        self._wake_those(lambda waiter: waiter.session is session)
        for shared in self.shared.values():
            leases = shared.leases
            if leases.leased:
                if not seen:
                    leases.uncount(session.member, leases.floor, leases.frontier)
                leases.release(session.member)
                shared.changed()
                self.stir(shared)
        if self.writer.is_idle:
            self.written()

    # --- acknowledging

    def find(self, partition: Partition) -> LeasedPartition:
        """What the group has in a partition that this broker leads. Raises Refused, INVALID_RECORD_STATE if that is
        nothing."""
        found = self.shared.get((partition.topic, partition.index))
        if found is None or found.partition is not partition:
            raise Refused(Fault.INVALID_RECORD_STATE, "the member has acquired nothing there")
        return found

    def acknowledge(self, session: ShareSession, shared: LeasedPartition, acks: Sequence[Ack]) -> Iterator[None]:
        """Takes a partition's acknowledgements, all or none; yields after some, so that others have their turn.
        Acknowledgements of records that were deleted from the log's start do nothing, as in Kafka. `durable` tells when
        they are durable. Raises Refused before it takes any: INVALID_RECORD_STATE if the member does not hold a record,
        INVALID_REQUEST; NotLeader. Raises these errors later, too, for the acknowledgements that it has not taken yet,
        if the member has lost a record while others had their turn."""
        acks = self._held(session, shared, acks)
        for first in range(0, len(acks), AT_ONCE):
            some = acks[first : first + AT_ONCE]
            if first:
                yield
                some = self._held(session, shared, some)
            self._settle(session.member, shared, some)
            shared.changed()
        self.stir(shared)

    def _held(self, session: ShareSession, shared: LeasedPartition, acks: Sequence[Ack]) -> list[Ack]:
        """The acknowledgements of records that the log still has. Raises as `acknowledge` unless all of them may be
        taken now."""
        if not shared.stands:
            raise shared.lost or shared.partition.deposed()
        if session.closed:
            raise Refused(Fault.SHARE_SESSION_NOT_FOUND, "the share session has ended meanwhile")
        leases, member, now = shared.leases, session.member, self.keeper.now_ms()
        if leases.due is not None and leases.due <= now:
            leases.expire(now)
            shared.changed()
        shared.trim()
        start = shared.partition.start_offset
        there = [ack._replace(first=max(ack.first, start)) for ack in acks if ack.last >= start]
        for ack in there:
            if ack.kind is AckType.RENEW and not self.rules.renews:
                raise Refused(Fault.INVALID_REQUEST, "share.renew.acknowledge.enable is false for this group")
            if ack.kind is not AckType.GAP and leases.held_by(member, ack.first, ack.last) != [(ack.first, ack.last)]:
                text = f"offsets {ack.first} to {ack.last}: the member has not acquired all of them"
                raise Refused(Fault.INVALID_RECORD_STATE, text)
        return there

    def _settle(self, member: str, shared: LeasedPartition, acks: Sequence[Ack]) -> None:
        leases, now = shared.leases, self.keeper.now_ms()
        for ack in acks:
            if ack.kind is AckType.RENEW:
                leases.extend(now, member, ack.first, ack.last, self.rules.lock_ms)
            elif ack.kind is AckType.RELEASE:
                leases.nack(now, member, ack.first, ack.last)
            else:
                for first, last in leases.held_by(member, ack.first, ack.last):
                    leases.ack(member, first, last)

    def durable(self, touched: Iterable[LeasedPartition]) -> Later[Mapping[LeasedPartition, KrappyError]]:
        return self.writer.durable(touched)

    # --- acquiring

    async def until_some(self, session: ShareSession, wait_ms: int, ready: Callable[[], bool]) -> bool:
        """Waits up to `wait_ms` until the session may acquire something. Returns whether it may. Returns False earlier
        if a partition is lost, or if `ready()` is true; this is asked again whenever ACLs have changed."""
        deadline = trio.current_time() + wait_ms / 1000
        parts = session.open_parts
        while not (session.closed or self.keeper.stopped):
            if ready() or any(shared.lost is not None for shared in parts):
                return False
            now = self.keeper.now_ms()
            if any(shared.wanted(now) is not None for shared in parts):
                return True
            left = deadline - trio.current_time()
            if left <= 0:
                return False
            # Nothing wakes this task when this broker may lease again.
            await self._wait(
                session, frozenset(parts), left if all(shared.is_sure for shared in parts) else min(left, LOOK_S)
            )
        return False

    async def acquire(self, session: ShareSession, max_records: int, max_bytes: int) -> GroupPolled:
        """Leases the next events of the session's partitions, if there are any. Raises StorageError, CorruptBatch."""
        parts = session.open_parts
        self._turn = turn = (self._turn + 1) % max(1, len(parts))
        among, room = parts[turn:] + parts[:turn], max(1, max_bytes)
        poll = GroupPoll(self.keeper, session.member, self.rules.lock_ms, among, False, max_records, room)
        cold = None if session.closed else poll.gather()
        if cold is not None:
            await poll.gather_from(cold, lambda: session.closed)
        self._stir_some(parts)  # there may be more events, for the next in line
        return poll.answer(self.keeper.now_ms())

    async def _wait(self, session: ShareSession, among: frozenset[LeasedPartition], seconds: float) -> None:
        waiter = _Waiter(session, among)
        self._waiters[waiter] = None
        try:
            with trio.move_on_after(seconds), subscribed((signal, waiter.event.set) for signal in self._revocations):
                await waiter.event.wait()
        except trio.Cancelled:
            if waiter.event.is_set():
                self._stir_some(among)  # it was woken and leaves: now it is the next one's turn
            raise
        finally:
            self._waiters.pop(waiter, None)

    def stir(self, shared: LeasedPartition | None = None) -> None:  # type: ignore[override]
        """Call it when there may be events to lease (in `shared`, if given): wakes the first in line that may have
        them."""
        self._stir_some(self.shared.values() if shared is None else (shared,))

    def _stir_some(self, among: Iterable[LeasedPartition]) -> None:
        if not self._waiters:
            return
        now = self.keeper.now_ms()
        for shared in among:
            if shared.wanted(now) is not None:
                waiter = next((each for each in self._waiters if shared in each.among), None)
                if waiter is not None:
                    self._wake(waiter)
                    return

    def _wake(self, waiter: _Waiter) -> None:
        self._waiters.pop(waiter, None)
        waiter.event.set()

    def _wake_those(self, chosen: Callable[[_Waiter], bool]) -> None:
        for waiter in [each for each in self._waiters if chosen(each)]:
            self._wake(waiter)

    def wake_all(self) -> None:
        self._wake_those(lambda waiter: True)
