"""The offsets of Kafka's groups: committed, staged by transactions, fetched, and forgotten after a while.

A commit is acknowledged when it is on disk. Commits that arrive together share a sync. Retention (KIP-211): an offset
is forgotten `offsets_retention_ms` after its group became empty, or after its commit, whichever is later; in a group
with members only if none of them subscribes to its topic.

The offsets that one user has committed take as much memory as is left for all others (`OwnedMemory`): so nobody keeps
others from committing, not even through a group that they share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import GroupState
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.mixed import speaks_classic
from krappy.core.kafka.offset import At, Offset
from krappy.core.owned_memory import OwnedMemory
from krappy.errors import CoordinatorNotAvailable, KrappyError, NotCoordinator, StorageError
from krappy.ports.audit import whose
from krappy.store.group_offsets import GroupChange, PendingAt
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.group import KafkaGroup
    from krappy.broker.kafka_groups.registry import GroupRegistry
    from krappy.broker.topics.topic import Topic

LONGEST_METADATA = 4096  # characters; Kafka's offset.metadata.max.bytes
CHECK_MS = 600_000  # Kafka's offsets.retention.check.interval.ms
SOONEST_CHECK_MS = 250
EACH = 300  # bytes of memory that an offset takes, beside its metadata
MEMORY_SHARE = 2  # offsets may take 1/MEMORY_SHARE of the broker's memory budget
BETWEEN_TURNS = 100  # groups that are checked in one turn
EPOCH_SINCE = 9  # the version of OffsetCommit that a member of a KIP-848 group needs


class KafkaOffsets:
    def __init__(self, owner: GroupRegistry) -> None:
        self._owner = owner
        self._runtime = owner.runtime
        self._store = owner.store
        config = owner.runtime.config
        self._retention_ms = config.offsets_retention_ms
        self._memory = OwnedMemory(config.memory_bytes // MEMORY_SHARE, fair=config.authorizes)
        owner.on_forget.append(lambda group: self.count(group, -1))

    # --- committing

    def check(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        version: int = EPOCH_SINCE,
        transactional: bool = False,
    ) -> KafkaGroup:
        """The group that this member, in this generation or epoch, may commit to. Raises Refused."""
        if not name:
            raise Refused(Fault.INVALID_GROUP_ID)
        group = self._owner.get(name)
        if group is None:
            unknown = Fault.GROUP_ID_NOT_FOUND if version >= EPOCH_SINCE else Fault.ILLEGAL_GENERATION
            self._owner.check_free(name)
            if generation >= 0:
                raise Refused(unknown)
            return self._owner.make(name)
        membership = group.membership
        if isinstance(membership, ClassicGroup):
            membership.check_commit(self._owner.now(), member_id, generation, instance_id, transactional=transactional)
        else:
            if (
                version < EPOCH_SINCE
                and not transactional
                and generation >= 0
                and not speaks_classic(membership, member_id)
            ):
                raise Refused(Fault.UNSUPPORTED_VERSION)
            if not (transactional and generation < 0):
                membership.check_commit(member_id, generation, instance_id)
        return group

    async def commit(self, group: KafkaGroup, offsets: Mapping[At, Offset]) -> None:
        """Commits to a group that `check` gave. Durable on return. Raises Refused for lack of memory, StorageError."""
        error = await self.commit_later(group, offsets).wait()
        if error is not None:
            raise error

    def commit_later(self, group: KafkaGroup, offsets: Mapping[At, Offset]) -> Later[KrappyError | None]:
        """As `commit`, but the Later gives None once it is durable, or the error. So commits that follow each other on
        a connection share a sync. They take effect in the order of the calls."""
        later: Later[KrappyError | None] = Later()
        if not offsets:
            later.resolve(None)
            return later
        offsets = self._as_kept(group, offsets)
        self._check_room(group.offsets, offsets)
        earlier = _staged_before(group, offsets)
        head = None if group.offsets else group.head()
        self._store.write(GroupChange(group.name, head, offsets=offsets, pending=dict.fromkeys(earlier)))
        self._put(group.offsets, offsets)
        self._remove(group, (), earlier)
        self._store.written(group.name).then(lambda _, error: later.resolve(_known(error)))
        return later

    def commit_as(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[At, Offset],
        *,
        version: int,
    ) -> Later[KrappyError | None]:
        """As `commit_later`, by a member that `check` lets commit."""
        group = self.check(name, member_id, generation, instance_id, version=version)
        later = self.commit_later(group, offsets)
        self._tell(name, generation, offsets)
        return later

    def _tell(self, name: str, generation: int, offsets: Mapping[At, Offset]) -> None:
        """Tells the audit log of a commit without a membership, by a tool or a consumer that has not joined the group.
        It may name any member: nobody checks that."""
        if generation < 0:
            told = ((topic, index, offset.offset) for (topic, index), offset in offsets.items())
            self._runtime.audit.moved(name, (), told, often=True)

    async def stage(
        self,
        name: str,
        producer_id: int,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[At, Offset],
    ) -> None:
        group = self.check(name, member_id, generation, instance_id, transactional=True)
        offsets = self._as_kept(group, offsets)
        pending: dict[PendingAt, Offset] = {(producer_id, *at): offset for at, offset in offsets.items()}
        self._check_room(group.pending.get(producer_id, {}), offsets)
        self._store.write(GroupChange(group.name, group.head(), pending=pending))
        self._put(group.pending.setdefault(producer_id, {}), offsets)
        self._tell(name, generation, offsets)  # not at the transaction's end, which does not say who asks
        await self._store.written(name).wait()

    def complete(self, name: str, producer_id: int, commit: bool) -> None:
        group = self._owner.get(name)
        if group is None:
            self._store.check_here(name)
            return
        staged = group.pending.get(producer_id)
        if staged is None:
            return
        held = {at: offset for at, offset in staged.items() if self._exists(at)} if commit else {}
        gone = [*((producer_id, *at) for at in staged), *_staged_before(group, held)]
        self._store.write(GroupChange(name, offsets=held, pending=dict.fromkeys(gone)))
        self._put(group.offsets, held)
        self._remove(group, (), gone)
        group.pending.pop(producer_id, None)  # it may have staged nothing

    def _check_room(self, held: Mapping[At, Offset], offsets: Mapping[At, Offset]) -> None:
        """Raises Refused when these offsets take too many bytes of memory more than those in whose place they come."""
        grown = sum(_size(offset) - _size(held.get(at)) for at, offset in offsets.items())
        if not self._memory.has_room(whose(), grown):
            raise Refused(Fault.COORDINATOR_NOT_AVAILABLE, "offsets take all the memory that they may")

    def _put(self, held: dict[At, Offset], offsets: Mapping[At, Offset]) -> None:
        self._charge((held[at] for at in offsets if at in held), -1)
        self._charge(offsets.values())
        held.update(offsets)

    def count(self, group: KafkaGroup, sign: int = 1) -> None:
        """Counts a group that was loaded, with all its offsets; -1: one that is forgotten."""
        for offsets in (group.offsets, *group.pending.values()):
            self._charge(offsets.values(), sign)

    def _charge(self, offsets: Iterable[Offset], sign: int = 1) -> None:
        for offset in offsets:
            self._memory.charge(offset.owner, sign * _size(offset))

    def _topic(self, name: str) -> Topic | None:
        """The topic of this name, or whose table has this name."""
        return self._runtime.topics.get(self._runtime.topics.table_of(name) or name)

    def _as_kept(self, group: KafkaGroup, offsets: Mapping[At, Offset]) -> dict[At, Offset]:
        group.turns += 1
        ids: dict[str, bytes] = {}
        found: dict[At, Offset] = {}
        owner = whose()
        for at, offset in offsets.items():
            id = ids.get(at[0])
            if id is None:
                topic = self._topic(at[0])
                id = ids[at[0]] = b"" if topic is None else topic.id
            found[at] = Offset(*offset[:-3], id, owner, group.turns)  # quicker than `_replace`
        return found

    def _exists(self, at: At) -> bool:
        topic = self._topic(at[0])
        return topic is not None and at[1] < topic.count

    # --- fetching

    async def readable(self, name: str, member_id: str | None, epoch: int) -> KafkaGroup | None:
        """The group whose offsets are fetched. None: no such group, so it has no offsets. Raises Refused,
        CoordinatorNotAvailable."""
        if not name:
            raise Refused(Fault.INVALID_GROUP_ID)
        await self._store.sure(name)
        group = self._owner.get(name)
        if group is None:
            self._owner.check_free(name)
            return None
        if not isinstance(group.membership, ClassicGroup) and (member_id or epoch >= 0):
            group.membership.check_commit(member_id or "", epoch)
        return group

    # --- forgetting

    async def delete_from(self, name: str, wanted: Iterable[At]) -> dict[At, Fault]:
        """OffsetDelete: deletes positions in topics that no member subscribes to. Gives a fault for each. Durable on
        return. Raises Refused, StorageError, CoordinatorNotAvailable."""
        await self._store.sure(name)
        group = self._owner.find(name)
        topics = set() if group.membership.empty else group.membership.topics()
        faults: dict[At, Fault] = {}
        gone: list[tuple[str, int, int]] = []  # (topic, partition, offset)
        for at in wanted:
            if not self._exists(at):
                faults[at] = Fault.UNKNOWN_TOPIC_OR_PARTITION
            elif topics is None or at[0] in topics:
                faults[at] = Fault.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                faults[at] = Fault.NONE
                if at in group.offsets:
                    gone.append((*at, group.offsets[at].offset))
        self._drop(group, {(topic, index) for topic, index, _ in gone})
        self._runtime.audit.moved(name, gone, ())  # before the wait, which ends if the sender leaves
        await self._store.written(name).wait()
        return faults

    def _drop(self, group: KafkaGroup, gone: Collection[At]) -> None:
        self._delete(group, gone)
        self._remove(group, gone)

    def _delete(self, group: KafkaGroup, gone: Collection[At], pending: Collection[PendingAt] = ()) -> None:
        if gone or pending:
            self._store.write(GroupChange(group.name, offsets=dict.fromkeys(gone), pending=dict.fromkeys(pending)))

    def _remove(self, group: KafkaGroup, gone: Iterable[At], pending: Iterable[PendingAt] = ()) -> None:
        """Removes them from memory."""
        for at in gone:
            self._charge([group.offsets.pop(at)], -1)
        for producer_id, *rest in pending:
            offsets = group.pending[producer_id]
            self._charge([offsets.pop(tuple(rest))], -1)  # type: ignore[arg-type]
            if not offsets:
                del group.pending[producer_id]

    async def forget_topic(self, topic: str, id: bytes) -> None:
        """Deletes all positions in a deleted topic. Positions in a new topic of the same name stay. No new ones come
        meanwhile, since the topic is gone. Raises StorageError.

        In a cluster this broker may not be allowed to write. Then they are gone from memory all the same, else the
        group would go on from them in the new topic. The next load sees by the topic's id that they are stale."""

        def of_it(at: At, offset: Offset) -> bool:
            return topic in (at[0], self._runtime.topics.table_of(at[0])) and offset.topic_id in (b"", id)

        for number, group in enumerate([*self._owner.groups.values()], 1):
            if number % BETWEEN_TURNS == 0:
                await trio.lowlevel.checkpoint()
            if group.gone:
                continue
            staged = group.pending.items()
            pending = [(pid, *at) for pid, some in staged for at, offset in some.items() if of_it(at, offset)]
            gone = [at for at, offset in group.offsets.items() if of_it(at, offset)]
            with suppress(NotCoordinator, CoordinatorNotAvailable):
                self._delete(group, gone, pending)
            self._remove(group, gone, pending)

    async def run(self) -> None:
        """Forgets expired offsets, again and again. Until cancelled."""
        every = min(CHECK_MS, max(SOONEST_CHECK_MS, self._retention_ms // 4))
        while True:
            await trio.sleep(every / 1000)
            for group in [*self._owner.groups.values()]:
                try:
                    self.expire(group, self._runtime.clock.steady_ms())
                except KrappyError as error:
                    self._runtime.report("offsets_not_expired", group=group.name, error=str(error))
                await trio.lowlevel.checkpoint()

    def expire(self, group: KafkaGroup, now: int) -> None:
        """Forgets a group's expired offsets, and the group with its last one. Raises StorageError."""
        if group.gone or self._owner.closed:
            return
        membership = group.membership
        kept: set[str] | None = set()
        if not membership.empty:
            settled = not isinstance(membership, ClassicGroup) or membership.state is GroupState.STABLE
            kept = membership.topics() if settled else None
        since = group.empty_since or 0
        if kept is not None:
            self._drop(
                group,
                [
                    at
                    for at, offset in group.offsets.items()
                    if at[0] not in kept and self._lapses(offset, since) <= now and not group.unstable(at)
                ],
            )
        if group.forgettable:
            self._owner.forget(group)

    def _lapses(self, offset: Offset, since: int) -> int:
        if offset.expires is not None:
            return offset.expires
        return max(since, offset.committed) + self._retention_ms


def _staged_before(group: KafkaGroup, offsets: Mapping[At, Offset]) -> list[PendingAt]:
    """What transactions have staged for the same partitions before these offsets came: it counts no more, however they
    end."""
    return [
        (producer_id, *at)
        for producer_id, staged in group.pending.items()
        for at, offset in offsets.items()
        if at in staged and staged[at].turn < offset.turn
    ]


def _known(error: Exception | None) -> KrappyError | None:
    return error if error is None or isinstance(error, KrappyError) else StorageError(str(error))


def _size(offset: Offset | None) -> int:
    return 0 if offset is None else EACH + 2 * len(offset.metadata)
