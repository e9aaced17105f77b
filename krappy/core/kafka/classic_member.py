"""A member of a classic group, what it asks for when it joins, and what it is answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from sys import getsizeof
from typing import Any, NamedTuple

from krappy.core.kafka.faults import Fault
from krappy.core.kafka.subscription import subscribed_topics

LONGEST_NAME = 249  # characters of a name that a member gives itself, as of a topic
EACH_PROTOCOL = 150  # bytes of memory that one takes, beside what is in it
Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), the member's favourite first


def taken(*names: str | None) -> int:
    """Bytes of memory that these names take."""
    return sum(getsizeof(name) for name in names if name)


def brought(protocols: Protocols) -> int:
    """Bytes of memory that a member's protocols take, about."""
    return sum(EACH_PROTOCOL + len(name) + len(metadata) for name, metadata in protocols)


class GroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Rules(NamedTuple):
    initial_delay_ms: int = 3000
    max_members: int = 1000
    max_bytes: int = 16 << 20  # of all members' metadata and assignments


class Join(NamedTuple):
    """A JoinGroup request. `fresh_id`: the id that a new member gets; `id_first`: it is told that id, and joins again
    with it (KIP-394); `may_skip`: it knows "skip the assignment" (KIP-814)."""

    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: Protocols
    session_ms: int
    rebalance_ms: int
    client_id: str = ""
    client_host: str = ""
    fresh_id: str = ""
    id_first: bool = False
    may_skip: bool = False


class Joined(NamedTuple):
    """`members`: (id, instance id, metadata) of all, for the leader only."""

    fault: Fault
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    fault: Fault
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Reply(NamedTuple):
    """An answer for who waits with `token`."""

    token: Any
    answer: Joined | SyncAnswer


@dataclass(slots=True, eq=False)
class ClassicMember:
    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: Protocols
    assignment: bytes = b""
    expires: int | None = None  # when its session ends; None: not while its request is parked
    join: Any = None  # the token of its parked JoinGroup
    sync: Any = None  # and of its parked SyncGroup
    is_new: bool = field(default=True)  # has not been answered yet

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def size(self) -> int:
        """Bytes that it brought along."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols) + len(self.assignment)

    @property
    def memory(self) -> int:
        """Bytes of memory that its names, protocols and assignment take, about."""
        names = taken(self.id, self.instance_id, self.client_id, self.client_host)
        return names + brought(self.protocols) + len(self.assignment)

    def dump(self) -> list[Any]:
        """What `load` takes: plain values."""
        protocols = [list(each) for each in self.protocols]
        who = [self.id, self.instance_id, self.client_id, self.client_host]
        return [*who, self.session_ms, self.rebalance_ms, protocols, self.assignment]

    @classmethod
    def load(cls, state: Sequence[Any]) -> ClassicMember:
        id, instance_id, client_id, client_host, session_ms, rebalance_ms, protocols, assignment = state
        known = tuple((name, bytes(metadata)) for name, metadata in protocols)
        member = cls(id, instance_id, client_id, client_host, session_ms, rebalance_ms, known, bytes(assignment))
        member.is_new = False
        return member


def common(members: Iterable[ClassicMember]) -> set[str]:
    """The protocols that all of them speak."""
    found: set[str] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        found = names if found is None else found & names
    return found or set()


def elect(members: Sequence[ClassicMember]) -> str | None:
    """The protocol that most of them like best among those that all speak; of equals the first member's favourite."""
    candidates = common(members)
    votes = Counter(next(name for name, _ in member.protocols if name in candidates) for member in members)
    return max(votes, key=votes.__getitem__) if votes else None


def same_subscription(old: bytes, new: bytes) -> bool:
    """Whether two metadata ask for the same topics (their user data may differ), or are the same bytes."""
    topics = subscribed_topics(old)
    return old == new if topics is None else topics == subscribed_topics(new)
