"""Groups, of either protocol, and their members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

from krappy.core.kafka.classic_member import Join, Joined, SyncAnswer
from krappy.core.kafka.faults import Fault
from krappy.core.kafka.modern import ModernGroup
from krappy.core.kafka.modern_member import Beat, Beaten
from krappy.core.kafka.name_regex import TopicRegex
from krappy.core.kafka.offset import At, Offset
from krappy.core.kafka.share import Ack, ShareGroup, ShareRules
from krappy.core.security.quota import Payer
from krappy.errors import KrappyError
from krappy.ports.registrations import RegistrationFacts
from krappy.ports.settings import SettingsPort
from krappy.ports.shares import Opener, PartitionId
from krappy.waiting import Later

Own = Any  # an object that the broker gave: it takes no other one; mypy can't say that
Range = tuple[str, int, int, int]  # topic, partition, first offset, last offset
EpochRange = tuple[str, int, int, int, int]  # as Range, and the leader epoch of these events; -1: it is not known
Ranges = Sequence[Range | EpochRange]
MOST_LEASES = 100  # leases of a member that are told, at most


class GroupPolled(NamedTuple):
    """As the protocol's Polled. `parts`: (topic, partition, first offset, high watermark, batches), each partition
    once. `leases`: (topic, partition, first, last, deliveries). `waited`: ms from the poll's beginning until the events
    were leased."""

    parts: list[tuple[str, int, int, int, Any]]  # the batches are bytes-like
    leases: list[tuple[str, int, int, int, int]]
    waited: int = 0


class PositionFacts(TypedDict):
    """A group in a partition. `floor`: every event before it is settled. `lag` and the others are numbers of events:
    `leased` are with a member, `redelivering` wait for another one, `dead` went to the dead-letter topic. `end` and
    `lag` are -1 for a partition that this broker does not have."""

    topic: str
    partition: int
    floor: int
    end: int
    lag: int
    leased: int
    redelivering: int
    dead: int


class MemberFacts(TypedDict):
    """`leased`: how many events it has now. `leases`, of a group that was asked for by name: which ones, at most
    MOST_LEASES runs of offsets, each with the time (ms) at which the lease ends."""

    name: str
    client: str
    leased: int
    leases: NotRequired[list[tuple[str, int, int, int, int]]]


class GroupFacts(TypedDict):
    """A group of either protocol, as the native protocol tells it. `members`: only if one group was asked for."""

    group: str
    kind: str
    order: str
    topics: list[str]
    partitions: list[PositionFacts]
    members: NotRequired[list[MemberFacts]]


class MemberPort(Protocol):
    """One registration of a shared group."""

    name: str
    closed: bool

    def pay(self, payer: Payer) -> None:
        """What is made for the group from now on (dead-letter topics) counts in this payer's quotas."""

    def check(self) -> None: ...
    def poll_now(self, max_records: int, max_bytes: int) -> GroupPolled | None: ...
    async def poll(
        self, max_records: int, max_bytes: int, max_wait_ms: int = 0, again: Callable[[], Awaitable[None]] = ...
    ) -> GroupPolled:
        """Waits for `again` before it looks once more."""

    def ack(self, ranges: Ranges) -> Later[None]: ...
    def nack(self, ranges: Ranges, delay_ms: int = 0) -> None: ...
    def extend(self, ranges: Ranges, lease_ms: int) -> None: ...
    def uncount(self, unseen: Ranges, polls: int | None) -> None: ...
    def unseen(self, told: Ranges, polls: int | None) -> list[Range]: ...
    def in_parts(
        self,
        ranges: Ranges,
        settle: Callable[[Ranges], Later[None] | None],
        pause: Callable[[], Awaitable[None]],
    ) -> Awaitable[None]: ...
    def forfeit(self) -> None: ...
    def close(self) -> None: ...
    def describe(self) -> RegistrationFacts: ...


class GroupsPort(Protocol):
    async def join(
        self,
        name: str,
        client: str,
        topics: Sequence[str],
        *,
        start: str = "earliest",
        start_at: int | None = None,
        order: str = "none",
        lease_ms: int = 30_000,
        max_deliveries: int = 10,
        dead_letter: str | None = None,
    ) -> MemberPort: ...
    def each_group(self, only: str | None = None) -> Iterator[GroupFacts]: ...
    def describe(self, name: str) -> GroupFacts: ...
    def held(self, name: str) -> Iterator[tuple[str, str, int, int, int, int]]: ...
    def positions(self, name: str) -> list[tuple[str, int, int]]: ...
    def ends(self, name: str, topics: Collection[str]) -> list[tuple[str, int, int]]: ...
    async def commit(self, name: str, offsets: Sequence[tuple[str, int, int]]) -> None: ...
    async def reset(
        self,
        name: str,
        topic: str | None,
        partitions: Sequence[int] | None,
        start: str,
        start_at: int | None,
        *,
        dry_run: bool = False,
    ) -> list[Range]: ...
    async def delete(self, name: str) -> None: ...


class GroupMember(NamedTuple):
    """A consumer in a Kafka group, as named by a producer that commits its offsets in a transaction.

    `generation` -1, `id` "": not given.
    """

    group: str
    id: str
    generation: int
    instance_id: str | None


class Position(NamedTuple):
    """The offset that a consumer reads next. `leader_epoch` -1: not given."""

    offset: int
    leader_epoch: int
    metadata: str


class Listed(NamedTuple):
    name: str
    kind: str  # "classic", "consumer", "share", or "krappy": a native one
    protocol_type: str
    state: str


class DescribedGroup(NamedTuple):
    """`members`: (id, instance id, client id, client host, metadata, assignment)."""

    state: str
    protocol_type: str
    protocol: str
    members: Sequence[tuple[str, str | None, str, str, bytes, bytes]]


class KafkaGroupPort(Protocol):
    """The positions of one of Kafka's groups. `pending`: those of open transactions, by producer id."""

    @property
    def offsets(self) -> Mapping[At, Offset]: ...
    @property
    def pending(self) -> Mapping[int, Mapping[At, Offset]]: ...
    def unstable(self, at: At) -> bool: ...


class KafkaOffsetsPort(Protocol):
    """Each method raises Refused, and StorageError, too, if it writes something."""

    def commit_as(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[At, Offset],
        *,
        version: int,
    ) -> Later[KrappyError | None]: ...
    async def readable(self, name: str, member_id: str | None, epoch: int) -> KafkaGroupPort | None: ...
    async def delete_from(self, name: str, wanted: Iterable[At]) -> Mapping[At, Fault]: ...


class KafkaGroupsAdminPort(Protocol):
    def list_groups(self) -> Iterator[Listed]:
        """Raises CoordinatorNotAvailable while some are not loaded."""
        ...

    def epoch(self) -> int: ...

    async def describe(self, name: str) -> DescribedGroup: ...
    async def describe_modern(self, name: str) -> tuple[ModernGroup, dict[bytes, str]]: ...
    async def delete(self, name: str) -> None: ...


class SharePosition(NamedTuple):
    """Where a share group is in a partition. `start`: every record before it is settled. `lag`: how many records are
    not settled; -1: not known. `leader_epoch`: of the leader that has read the state last."""

    start: int
    leader_epoch: int
    lag: int


class ShareGroupsPort(Protocol):
    """Kafka's share groups. Each method raises Refused, and StorageError, too, if it writes something."""

    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]: ...
    async def describe(self, name: str) -> tuple[ShareGroup, dict[bytes, str]]: ...
    async def positions(self, name: str) -> Mapping[At, SharePosition]: ...
    async def alter(self, name: str, moves: Mapping[PartitionId, int]) -> None: ...
    async def forget(self, name: str, topics: Iterable[bytes]) -> None: ...


class ShareSessionPort(Protocol):
    """A share session. `parts`: its partitions, by topic id and partition; None: not open."""

    member: str
    parts: dict[tuple[bytes, int], Own]


class ShareLeasesPort(Protocol):
    """What a share group has leased of the partitions that this broker leads."""

    @property
    def rules(self) -> ShareRules: ...
    def find(self, partition: Own) -> Own: ...
    def acknowledge(self, session: Own, shared: Own, acks: Sequence[Ack]) -> Iterator[None]: ...
    def durable(self, touched: Iterable[Own]) -> Later[Mapping[Own, KrappyError]]: ...
    async def until_some(self, session: Own, wait_ms: int, ready: Callable[[], bool]) -> bool: ...
    async def acquire(self, session: Own, max_records: int, max_bytes: int) -> GroupPolled: ...


class ShareConnectionPort(Protocol):
    """The share sessions of one connection."""

    def session(
        self, name: str, member: str, epoch: int, opener: Opener
    ) -> tuple[ShareLeasesPort, ShareSessionPort]: ...
    def end(self, group: Own, session: Own, *, seen: bool) -> None: ...
    def make_room(self, session: Own, more: int) -> None: ...
    async def open(self, group: Own, partitions: Mapping[PartitionId, Own]) -> Mapping[PartitionId, Own]: ...
    def close(self) -> None: ...


class SharePartitionsPort(Protocol):
    def connect(self) -> ShareConnectionPort: ...


class GroupSettingsPort(SettingsPort, Protocol):
    """The settings of groups."""

    def names(self) -> list[str]: ...
    def heartbeat_ms(self, group: str, kind: str = ..., /) -> int: ...


class KafkaGroupsPort(Protocol):
    """The coordinator of Kafka's groups. Its methods raise `Refused` (krappy.core.kafka.faults), which says why."""

    @property
    def settings(self) -> GroupSettingsPort: ...
    @property
    def offsets(self) -> KafkaOffsetsPort: ...
    @property
    def admin(self) -> KafkaGroupsAdminPort: ...
    @property
    def share(self) -> ShareGroupsPort: ...
    def join(self, name: str, ask: Join) -> Later[Joined]: ...
    def sync(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
    ) -> Later[SyncAnswer]: ...
    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> Fault: ...
    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[Fault]: ...
    def unmatched(self, name: str, pattern: str | None = None) -> list[TopicRegex]: ...
    def match(self, name: str, pattern: str | None = None) -> Iterator[None]: ...
    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]: ...
    def new_member_id(self) -> str: ...
