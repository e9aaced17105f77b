"""One Kafka group: its state machine, its offsets, and what is stored of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgpack

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import Rules, brought, taken
from krappy.core.kafka.modern import ModernGroup, ModernRules
from krappy.core.kafka.offset import At, Offset
from krappy.core.kafka.share import ShareGroup
from krappy.errors import StorageError
from krappy.store.group_offsets import KeptGroup

EACH_GROUP = 1500  # bytes of memory of a group, beside its name
EACH_MEMBER = 1500  # bytes of a member, beside what it sent
EACH_PROMISE = 500  # bytes of a member that was given an id, and has not joined with it yet
EACH_PARTITION = 150


class KafkaGroup:
    """`membership`: who its members are and what each has, by the rules of its protocol. `empty_since`: when its last
    member left (steady ms); None while it has members."""

    def __init__(self, rang: Rang, name: str, membership: ClassicGroup | ModernGroup, empty_since: int) -> None:
        self._rang = rang
        self.name = name
        self.membership = membership
        self.offsets: dict[At, Offset] = {}
        self.pending: dict[int, dict[At, Offset]] = {}  # by producer id
        self.turns = 0  # of offsets: the last one that came since it was loaded
        self.empty_since: int | None = empty_since
        self.alarm: int | None = None  # set by Alarms
        self.held: Counter[str] = Counter()  # its memory by owner (`Principal.owner`), as `measure` told last
        self.owner = ""  # who had it made; "": it was loaded
        self.owners: dict[str, str] = {}  # by member id, who has joined with it last
        self.gone = False
        self._left: dict[str, bytes | None] = {}  # stored members of the previous membership

    def ring(self, now: int) -> None:
        """A session's or a rebalance's timer has ended."""
        if not self.gone:
            self._rang(self, now)

    @property
    def forgettable(self) -> bool:
        """Whether it has no members and no offsets, so that it can be forgotten."""
        return self.membership.idle and not self.offsets and not self.pending

    def unstable(self, at: At) -> bool:
        """Whether an open transaction has staged an offset for this partition."""
        return any(at in offsets for offsets in self.pending.values())

    @property
    def memory(self) -> int:
        return sum(self.held.values())

    def measure(self, newcomer: str = "") -> Counter[str]:
        """About how many bytes of memory it and its members take, by owner; its offsets are counted elsewhere. Members
        that came since it was last called are the `newcomer`'s."""
        membership = self.membership
        promised: Iterable[str] = ()
        size = EACH_GROUP + taken(self.name)
        if isinstance(membership, ClassicGroup):
            promised, size = membership.promised, size + taken(membership.protocol_type, membership.protocol)
        self.owners = {each: self.owners.get(each, newcomer) for each in (*membership.members, *promised)}
        found = Counter({self.owner: size})
        for member_id, owner in self.owners.items():
            found[owner] += self.memory_of(member_id) or EACH_PROMISE
        return found

    def memory_of(self, member_id: str) -> int:
        """About how many bytes of memory a member takes; 0 if it is not there."""
        if isinstance(self.membership, ClassicGroup):
            member = self.membership.members.get(member_id)
            return 0 if member is None else EACH_MEMBER + member.memory
        each = self.membership.members.get(member_id)
        if each is None:
            return 0
        size = EACH_MEMBER + EACH_PARTITION * len(each.assigned)
        size += taken(each.id, each.instance_id, each.rack, each.client_id, each.client_host, each.pattern)
        return size + taken(*each.topics) + (brought(each.classic.protocols) if each.classic else 0)

    def move_to(self, membership: ClassicGroup | ModernGroup) -> None:
        """Goes on with another membership. The next write deletes the stored members of the previous one."""
        if isinstance(self.membership, ModernGroup):
            self._left = dict.fromkeys([*self.membership.members, *self.membership.dirty], None)
        self.membership = membership

    # --- kept

    def head(self) -> bytes:
        packed: bytes = msgpack.packb([self.membership.kind, self.empty_since, self.membership.dump()])
        return packed

    def changed_members(self) -> dict[str, bytes | None]:
        """Members of a KIP-848 group whose state must be stored. After the call they count as stored."""
        found, self._left = self._left, {}
        if isinstance(self.membership, ClassicGroup):
            return found
        for member_id in self.membership.dirty:
            state = self.membership.dump_member(member_id)
            found[member_id] = None if state is None else msgpack.packb(state)
        self.membership.dirty = set()
        return found

    def not_kept(self, changed: dict[str, bytes | None]) -> None:
        """Called when what `changed_members` gave could not be written: the next write has it again."""
        self._left = {**changed, **self._left}
        self.membership.saved = False


Rang = Callable[[KafkaGroup, int], None]  # called when a group's alarm rings, with the time in ms


def load(
    rang: Rang,
    name: str,
    kept: KeptGroup,
    classic: Rules,
    modern: Callable[[str, str], ModernRules],
    now: int,
    wall: int,
) -> KafkaGroup:
    """A group as it was stored. `modern`: the rules of a group, by its name and kind. Raises StorageError for what
    can't be read."""
    try:
        kind, empty_since, state = ("classic", wall, None) if kept.head is None else msgpack.unpackb(kept.head)
        membership = _membership(kind, state, kept.members, classic, modern(name, kind), now)
    except Exception as error:
        raise StorageError(f"the Kafka group '{name}' can't be read: {error or type(error).__name__}") from error
    group = KafkaGroup(rang, name, membership, wall if empty_since is None else empty_since)
    if not membership.empty:
        group.empty_since = None
    group.offsets = kept.offsets
    for (producer_id, topic, partition), offset in kept.pending.items():
        group.pending.setdefault(producer_id, {})[topic, partition] = offset
    return group


def _membership(
    kind: str, state: Sequence[Any] | None, members: Mapping[str, bytes], classic: Rules, modern: ModernRules, now: int
) -> ClassicGroup | ModernGroup:
    if kind in ("consumer", "share"):
        assert state is not None
        of = ShareGroup if kind == "share" else ModernGroup
        return of.load(state, [msgpack.unpackb(each) for each in members.values()], modern, now)
    if kind != "classic":
        raise ValueError(f"the kind '{kind}'")
    return ClassicGroup(classic) if state is None else ClassicGroup.load(state, classic, now)
