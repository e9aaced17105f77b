"""Topics and partitions, for handlers that publish, read and look up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from krappy.core.cluster.image import TopicImage
from krappy.core.epochs import Epochs
from krappy.core.refused_batches import NextBatch, RefusedByPartitions
from krappy.errors import KrappyError, NotLeader
from krappy.ports.replication import LeaderPort
from krappy.records.batch import Columns
from krappy.settings.topic import TopicConfig
from krappy.types import FilePart, Record, Span
from krappy.waiting import Later, Signal

T = TypeVar("T")


class TransactionalSender(NamedTuple):
    """Who sends a batch in a transaction. `adds`: the batch also adds its partition to the transaction (KIP-890)."""

    transactional_id: str
    adds: bool


class TransactionEnd(NamedTuple):
    """The end of a producer's transaction, as its coordinator tells it. `epoch`: the producer epoch of the marker;
    `bumped`: the transaction's events have a lower epoch. `number`: which of the transactional id's transactions it is;
    -1: not known."""

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int
    bumped: bool = False
    number: int = -1


class StoredAt(NamedTuple):
    """Where a publish went: the offset of its first record, its (max) timestamp in ms, whether it was a retry."""

    offset: int
    timestamp: int
    duplicate: bool = False


class Raw(NamedTuple):
    """Bytes of batches as they stand in the log, the last of which may be cut short. `end`: all of them are below this
    offset."""

    records: bytes | bytearray | memoryview | FilePart
    end: int


class ActiveProducer(NamedTuple):
    """A producer whose sequence a partition remembers. `open_since`: the first offset of its open transaction.
    `coordinator_epoch`: of the last marker. -1: not known, or none."""

    producer_id: int
    epoch: int
    last_sequence: int
    timestamp: int  # ms, the latest of its events
    open_since: int
    coordinator_epoch: int


class SourcePort(Protocol):
    """The reading side of a partition, as Kafka's consumers use it."""

    index: int
    epoch: int  # the leader's

    @property
    def epochs(self) -> Epochs: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def readable_end(self) -> int: ...
    @property
    def moved(self) -> Signal:
        """The high watermark or the last stable offset went up, or the partition went away."""

    @property
    def gone(self) -> KrappyError | None:
        """The error that it went away with, if it did."""

    @property
    def offline(self) -> str:
        """Why it is out of service; empty while it is not."""

    @property
    def start_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    def producers(self) -> list[ActiveProducer]: ...
    def aborted(self, start: int, end: int) -> list[tuple[int, int]]: ...
    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw: ...
    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw: ...
    def available(self, offset: int, max_bytes: int, limit: int) -> int: ...
    def told_earliest(self) -> int: ...
    def out_of_range(self) -> None: ...
    async def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None: ...
    async def find_latest_time(self, limit: int) -> tuple[int, int] | None: ...


class SourceTopicPort(Protocol):
    """What Kafka's consumers read by a name: a topic, its table, or an internal topic."""

    name: str
    id: bytes
    image: TopicImage
    count: int  # of its partitions, in the cluster

    @property
    def internal(self) -> bool:
        """Whether it is one of Kafka's internal topics, which clients can't change."""

    @property
    def config(self) -> TopicConfig: ...
    @property
    def given(self) -> Mapping[str, str]:
        """The settings that were set for it."""

    @property
    def defaults(self) -> Mapping[str, str]:
        """The defaults that it keeps from when it was made."""

    @property
    def deleted(self) -> bool: ...
    def led(self, index: int) -> SourcePort:
        """A partition that this broker leads. Raises NotLeader, UnknownPartition."""

    def is_offline(self, index: int) -> bool: ...


class PartitionPort(SourcePort, LeaderPort, Protocol):
    topic: str

    @property
    def elsewhere(self) -> KrappyError | None:
        """Why a caller that was given this partition as its leader's must ask elsewhere: the partition is gone, or this
        broker does not lead it any more."""

    @property
    def size(self) -> int: ...
    @property
    def segments(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def view_failed(self) -> Exception | None: ...
    @property
    def log_failed(self) -> str: ...
    @property
    def spoiled(self) -> str:
        """Why its log is not what other replicas have, or can't be read as a whole; empty: nothing is known of that."""

    def publish(
        self,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None = None,
        *,
        by_header: bool = False,
        alone: bool = False,
        sender: TransactionalSender | None = None,
        refused: RefusedByPartitions | None = None,
    ) -> Later[StoredAt]: ...
    def publish_staged(self, data: bytes | memoryview) -> Later[StoredAt]: ...
    def following(self, producer_id: int) -> NextBatch | None: ...
    def publish_record(self, record: Record, expect: int | None = None) -> Later[StoredAt]: ...
    def read_now(
        self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None
    ) -> Span: ...
    async def read(
        self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None
    ) -> Span: ...
    async def look_at(self, batch: memoryview, work: Callable[[Columns], T]) -> T:
        """Gives what `work` returns for the records of one batch. Runs it in a thread if the batch unpacks to much."""

    def known_end(self) -> int: ...
    async def offset_for(self, start: str, start_at: int | None) -> int: ...
    def check_read(self, offset: int, epoch: int) -> None: ...
    def check_deletable(self, before: int) -> None: ...
    async def delete_records(self, before: int) -> int: ...
    async def deleted_everywhere(self, before: int, seconds: float = ...) -> None: ...
    @property
    def is_sure(self) -> bool: ...
    def unsure(self) -> NotLeader: ...
    def view_ready(self, min_offset: int | None) -> bool: ...
    def look_up(self, key: bytes) -> bytes | None: ...
    def look_up_some(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The entries of the first keys, in order: of all of them, unless the entries are large."""


class TopicPort(SourceTopicPort, Protocol):
    @property
    def settings(self) -> Mapping[str, str]:
        """All settings in force."""

    @property
    def local(self) -> Mapping[int, PartitionPort]:
        """The partitions that this broker has, by index."""

    def held(self, index: int) -> PartitionPort:
        """A partition of which this broker has a replica. Raises NotLeader, UnknownPartition."""

    def replica(self, index: int) -> PartitionPort:
        """A partition of which this broker, as far as it was told, has a replica in sync, while it holds a read lease.
        Raises NotLeader, UnknownPartition."""

    def led(self, index: int) -> PartitionPort:
        """A partition that this broker leads. Raises NotLeader, UnknownPartition."""

    def all_led(self) -> Sequence[PartitionPort]: ...
    @property
    def scattered(self) -> bool:
        """Whether it may have strays: keys in another partition than murmur2 gives them."""

    @property
    def unsure(self) -> bool | None:
        """Whether it may have strays, and is not marked as one that has some. None: this broker is alone."""

    async def newest(
        self, keys: Sequence[bytes], pause: Callable[[], Awaitable[None]]
    ) -> tuple[list[int], list[bytes | None]]:
        """The partition of each key's newest entry, and the entries; for as many of the first keys as `look_up_some`
        takes. The caller has waited for the views."""

    async def holders(self, key: bytes, pause: Callable[[], Awaitable[None]]) -> list[int]:
        """The partitions that have an entry of the key; a tombstone counts."""

    def describe(self) -> dict[str, Any]: ...
    def describe_settings(self) -> dict[str, Any]: ...
