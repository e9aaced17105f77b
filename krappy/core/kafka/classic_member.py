"""A member of a classic group, its requests to join, and the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from sys import getsizeof
from typing import Any, NamedTuple

from krappy.core.kafka.faults import Fault
from krappy.core.kafka.subscription import subscribed_topics

LONGEST_NAME = 249  # characters of a name that a member gives itself; a topic's name may have as many
EACH_PROTOCOL = 150  # bytes of memory of a protocol, beside its name and metadata
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
    """A JoinGroup request. `fresh_id`: the id for a new member. `id_first`: the member is first told that id, and joins
    again with it (KIP-394). `may_skip`: the client understands "skip the assignment" (KIP-814)."""

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
    """The answer to JoinGroup. `members`: (id, instance id, metadata) of all, for the leader only."""

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
    """The answer to the parked request with this `token`."""

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
    expires: int | None = None  # when its session ends; None while a request of it is parked
    join: Any = None  # the token of its parked JoinGroup
    sync: Any = None  # the token of its parked SyncGroup
    is_new: bool = field(default=True)  # whether it was never answered yet

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def size(self) -> int:
        """Bytes of its protocols and its assignment."""
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
    """The names of the protocols that all members support."""
    found: set[str] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        found = names if found is None else found & names
    return found or set()


def elect(members: Sequence[ClassicMember]) -> str | None:
    """The protocol that most members prefer, of those that all support; among equals, the one that was voted for first.
    None without members."""
    candidates = common(members)
    votes = Counter(next(name for name, _ in member.protocols if name in candidates) for member in members)
    return max(votes, key=votes.__getitem__) if votes else None


def same_subscription(old: bytes, new: bytes) -> bool:
    """Whether two metadata ask for the same topics (their user data may differ), or are the same bytes."""
    topics = subscribed_topics(old)
    return old == new if topics is None else topics == subscribed_topics(new)
