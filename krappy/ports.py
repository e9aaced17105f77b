"""What handlers may ask of the rest: narrow interfaces, so that a handler can be read, and tested, alone.

The broker's own classes satisfy these by shape; mypy checks it in app.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from krappy.core.staging import Job
from krappy.core.transactions import Transaction
from krappy.measures import Histogram, StoreMeasures
from krappy.topic_settings import Setting
from krappy.types import Record, Span, TopicPartition
from krappy.wire.messages import Answer, Request

T = TypeVar("T")
Bound = bytes | None  # of a range of keys


class LaterPort(Protocol):
    """An answer to come: `then(callback(value, error))`."""

    def then(self, callback: Callable[[Any, Exception | None], None]) -> None: ...
    def map(self, change: Callable[[Any], Any]) -> Any: ...
    async def wait(self) -> Any: ...


class ActiveProducer(NamedTuple):
    """A producer whose sequence a partition remembers. -1: not known. `open_since`: its transaction's first offset."""

    producer_id: int
    epoch: int
    last_sequence: int
    timestamp: int  # ms, the latest of its events
    open_since: int


class PartitionPort(Protocol):
    topic: str
    index: int
    moved: Any
    high_watermark: int
    gone: Any

    offline: str

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
    def start_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    def producers(self) -> list[ActiveProducer]: ...
    def aborted(self, start: int, end: int) -> list[tuple[int, int]]: ...
    def publish(
        self, data: bytes, expect: Sequence[tuple[int, int]] | None = None, *, by_header: bool = False
    ) -> Any: ...
    def publish_record(self, record: Record, expect: int | None = None) -> Any: ...
    def read_now(
        self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None
    ) -> Span: ...
    async def read(
        self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None
    ) -> Span: ...
    async def offset_for(self, start: str, start_at: int | None) -> int: ...
    def check_deletable(self, before: int) -> None: ...
    async def delete_records(self, before: int) -> int: ...
    def available(self, offset: int, max_bytes: int, limit: int) -> int: ...
    def view_ready(self, min_offset: int | None) -> bool: ...
    def look_up(self, key: bytes) -> bytes | None: ...
    def look_up_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...


class SourcePort(Protocol):
    """The reading side of a partition, as Kafka's consumers use it."""

    index: int
    epoch: int
    high_watermark: int
    moved: Any  # a signal: the high watermark or the last stable offset went up, or the partition went away
    gone: Any  # the error that it went away with, or None

    @property
    def offline(self) -> str:
        """Why it is out of service; empty while it is not."""

    @property
    def start_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    def producers(self) -> list[ActiveProducer]: ...
    def aborted(self, start: int, end: int) -> list[tuple[int, int]]: ...
    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Any: ...
    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Any: ...
    def available(self, offset: int, max_bytes: int, limit: int) -> int: ...
    def told_earliest(self) -> int: ...
    def out_of_range(self) -> None: ...
    async def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None: ...
    async def find_latest_time(self, limit: int) -> tuple[int, int] | None: ...


class TopicPort(Protocol):
    name: str
    id: str
    uuid: bytes
    config: Any
    deleted: bool

    @property
    def given(self) -> Mapping[str, str]:
        """The settings that were set for it."""

    @property
    def settings(self) -> Mapping[str, str]:
        """All in force."""

    @property
    def partitions(self) -> Sequence[PartitionPort]: ...
    def partition(self, index: int) -> PartitionPort: ...
    @property
    def scattered(self) -> bool:
        """Whether a key may stand in another partition than the one that its murmur2 names."""

    async def newest(
        self, keys: Sequence[bytes], pause: Callable[[], Awaitable[None]]
    ) -> tuple[list[int], list[bytes | None]]:
        """In which partition each key's newest entry stands, and the entry. The caller has waited for the views."""

    async def holders(self, key: bytes, pause: Callable[[], Awaitable[None]]) -> list[int]:
        """The partitions that have an entry of a key, a tombstone too."""

    def describe(self) -> dict[str, Any]: ...
    def describe_settings(self) -> dict[str, Any]: ...


class ScanPort(Protocol):
    offsets: list[tuple[int, int]]

    async def page(self, max_entries: int, max_bytes: int) -> Any: ...
    def close(self) -> None: ...


class SnapshotPort(Protocol):
    """A snapshot that is held for every connection."""

    id: str
    tombstones: bool
    offsets: list[tuple[int, int]]

    async def measure(self, enough: int) -> int: ...
    async def ranges(self, parts: int) -> list[tuple[int, bytes | None, bytes | None]]: ...
    def rows(
        self, partition: int, start: bytes | None, end: bytes | None, max_bytes: int, *, tombstones: bool
    ) -> Any: ...


class SnapshotsPort(Protocol):
    """Those that are held. SnapshotGone is raised for others."""

    def keep(self, id: str, ttl_ms: int | None) -> None: ...
    def reading(self, id: str) -> AbstractContextManager[SnapshotPort]: ...
    def close(self, id: str) -> None: ...


class MemberPort(Protocol):
    """One registration of a shared group."""

    name: str
    closed: bool

    def poll_now(self, max_records: int, max_bytes: int) -> Any: ...
    async def poll(self, max_records: int, max_bytes: int, max_wait_ms: int = 0) -> Any: ...
    def ack(self, ranges: Sequence[tuple[str, int, int, int]]) -> Any: ...
    def nack(self, ranges: Sequence[tuple[str, int, int, int]], delay_ms: int = 0) -> None: ...
    def extend(self, ranges: Sequence[tuple[str, int, int, int]], lease_ms: int) -> None: ...
    def uncount(self, unseen: Sequence[tuple[str, int, int, int]], polls: int | None) -> None: ...
    def close(self) -> None: ...


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
    def list_groups(self) -> list[dict[str, Any]]: ...
    def each_group(self) -> Iterator[dict[str, Any]]: ...
    def describe(self, name: str) -> dict[str, Any]: ...
    def held(self, name: str) -> Iterator[tuple[str, str, int, int, int, int]]: ...
    def positions(self, name: str) -> list[tuple[str, int, int]]: ...
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
    ) -> list[tuple[str, int, int, int]]: ...
    async def delete(self, name: str) -> None: ...


class GroupMember(NamedTuple):
    """A consumer in a Kafka group, as its producer names it. `generation` -1, `id` "": it does not say."""

    group: str
    id: str
    generation: int
    instance_id: str | None


class Position(NamedTuple):
    """Where a consumer goes on. `leader_epoch` -1: not said."""

    offset: int
    leader_epoch: int
    metadata: str


class TransactionsPort(Protocol):
    """Refusals are raised: core/transactions.py tells which."""

    async def init_producer(
        self, name: str, timeout_ms: int, expected_id: int = -1, expected_epoch: int = -1
    ) -> tuple[int, int]: ...
    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> None: ...
    async def add_group(self, name: str, producer_id: int, epoch: int, group: str) -> None: ...
    async def end(self, name: str, producer_id: int, epoch: int, commit: bool) -> None: ...
    async def stage_offsets(
        self, name: str, producer_id: int, epoch: int, member: GroupMember, offsets: Mapping[TopicPartition, Position]
    ) -> None: ...
    def find(self, name: str) -> Transaction | None: ...
    def list(self) -> list[Transaction]: ...


class StagedJob(NamedTuple):
    """A job that is not over. `expires_ms`: when, unless something comes of it before; -1: it is being published."""

    job: str
    state: str
    attempts: int
    sealed: int
    size: int  # bytes
    expires_ms: int


class AttemptPort(Protocol):
    topic: Any

    def publish(self, partition: int, data: bytes) -> Any: ...


class StageOpened(NamedTuple):
    id: str
    attempt: AttemptPort
    producer_id: int
    producer_epoch: int


class StagingPort(Protocol):
    """Refusals are raised: core/staging.py tells which. `commit` gives a core Job, and how much of how much is done."""

    async def stage(
        self, topic_name: str, name: str, task: str, attempt_name: str, ttl_ms: int, id: str | None
    ) -> StageOpened: ...
    async def seal(self, name: str, id: str, records: int) -> str: ...
    async def commit(self, name: str, tokens: Sequence[str], max_wait_ms: int) -> tuple[Job, int, int]: ...
    async def abort(self, name: str, id: str | None = None) -> None: ...
    def list(self) -> list[StagedJob]: ...


class KafkaGroupsPort(Protocol):
    """The coordinator of Kafka's groups; `Refused` (krappy.core.kafka.faults) says why not."""

    @property
    def settings(self) -> Any: ...
    @property
    def offsets(self) -> Any: ...
    @property
    def admin(self) -> Any: ...
    def join(self, name: str, ask: Any) -> Any: ...
    def sync(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
    ) -> Any: ...
    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> Any: ...
    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> Any: ...
    def beat(self, name: str, beat: Any) -> Any: ...
    def new_member_id(self) -> str: ...
    async def stage_offsets(
        self,
        name: str,
        producer_id: int,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[tuple[str, int], Any],
    ) -> None: ...
    def complete_transaction(self, name: str, producer_id: int, commit: bool) -> None: ...


class InternalTopicsPort(Protocol):
    """Topics of Kafka's own, that are there to be read (and are empty)."""

    @property
    def by_name(self) -> Mapping[str, Any]: ...
    @property
    def by_id(self) -> Mapping[bytes, Any]: ...
    def use(self, name: str) -> None: ...
    def listed(self) -> Sequence[Any]: ...


class SettingsPort(Protocol):
    """Settings that can be changed while the broker runs: of a broker (by its id, "" for all), or of a group."""

    @property
    def known(self) -> Mapping[str, Setting]: ...
    def held(self, name: str) -> Mapping[str, str]: ...
    def effective(self, name: str) -> Mapping[str, str]: ...
    def check(self, name: str, changes: Mapping[str, str | None]) -> Any: ...
    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None: ...


class TopicNamesPort(Protocol):
    def check(self, name: str) -> None: ...


class MachinePort(Protocol):
    async def try_disk(self) -> None: ...
    def events_refused(self) -> str: ...
    def catalog_failed(self) -> str: ...
    def disk_bytes(self) -> tuple[int, int, int]: ...
    def view_sizes(self) -> dict[str, int]: ...
    def resident_bytes(self) -> int: ...


class BrokerPort(Protocol):
    version: str
    opened: bool
    started_ms: int
    stopped: bool
    stopping: Any  # a signal: it begins to stop
    config: Any  # ServerConfig
    measures: StoreMeasures

    @property
    def machine(self) -> MachinePort: ...
    @property
    def transactions(self) -> TransactionsPort: ...
    @property
    def staging(self) -> StagingPort: ...
    @property
    def groups(self) -> GroupsPort: ...
    @property
    def kafka_groups(self) -> KafkaGroupsPort: ...
    @property
    def topics(self) -> Mapping[str, TopicPort]: ...
    @property
    def topics_by_id(self) -> Mapping[bytes, TopicPort]: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def clock(self) -> Any: ...
    @property
    def dynamic(self) -> Any: ...
    @property
    def internal(self) -> InternalTopicsPort: ...
    @property
    def names(self) -> TopicNamesPort: ...
    def now_ms(self) -> int: ...
    def topic(self, name: str) -> TopicPort: ...
    def table_topic(self, name: str, state: dict[str, Any]) -> Any: ...
    def table_of(self, name: str) -> str | None: ...
    def table_topic_by_id(self, uuid: bytes, state: dict[str, Any]) -> Any: ...
    async def topic_for_producer(self, name: str) -> TopicPort: ...
    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, Any], *, if_absent: bool = False
    ) -> tuple[TopicPort, bool]: ...
    async def alter_topic(self, name: str, config: Mapping[str, Any] | None, partitions: int | None) -> None: ...
    async def delete_topic(self, name: str) -> None: ...
    def settings(self, advertised: str) -> Sequence[Any]: ...
    async def hold_backup(self) -> Any: ...
    async def log_dir(self) -> tuple[str, int, int]: ...
    async def new_producer_id(self) -> int: ...
    async def wait_for_moves(
        self, parts: Sequence[Any], ready: Callable[[], bool], seconds: float, *, topics: bool = False, told: Any = None
    ) -> bool: ...
    async def wait_for_views(self, partitions: Sequence[Any], min_offset: int | None = None) -> None: ...
    def scan(self, partitions: list[Any], *chosen: Bound, tombstones: bool, whole: bool = False) -> ScanPort: ...
    @property
    def snapshots(self) -> SnapshotsPort: ...
    def open_snapshot(
        self,
        partitions: list[Any],
        prefix: Bound,
        start: Bound,
        end: Bound,
        ttl_ms: int,
        *,
        tombstones: bool,
        whole: bool = False,
    ) -> SnapshotPort: ...
    def watch(
        self,
        partitions: list[Any],
        *chosen: Bound,
        tombstones: bool,
        grows_with: Sequence[Any] = (),
        whole: bool = False,
    ) -> Any: ...
    async def history(
        self, partition: Any, key: bytes, offset: int, max_records: int, max_bytes: int
    ) -> tuple[list[bytes], int | None]: ...


class PacedPort(Protocol):
    """A session as far as back-pressure goes, whatever its protocol."""

    @property
    def ready(self) -> bool: ...
    async def writable(self) -> None: ...
    @property
    def answer_bytes(self) -> int: ...
    def answering(self, limit: int) -> AbstractAsyncContextManager[int]: ...
    async def pause(self) -> None: ...


class SessionPort(PacedPort, Protocol):
    client: str
    max_frame: int

    @property
    def broker(self) -> BrokerPort: ...
    def add(self, registration: Any) -> int: ...
    def find(self, handle: int, kind: type[T]) -> T: ...
    def remove(self, handle: int) -> None: ...
    def forget(self, handle: int) -> None: ...
    def find_scan(self, handle: int) -> ScanPort: ...


class RequestTimesPort(Protocol):
    def observe(self, kind: int | str, seconds: float, times: int = 1) -> None: ...


class ServerPort(Protocol):
    """The listeners and connections of every protocol, for those who watch over them."""

    def describe_connections(self) -> Iterator[dict[str, Any]]: ...
    def measure(self) -> dict[str, Any]: ...
    def request_times(self) -> Iterable[tuple[str, str, Histogram]]: ...
    def times(self, protocol: str) -> RequestTimesPort: ...
    def fault(self, error: Exception, kind: int) -> Exception: ...
    @property
    def report(self) -> Callable[..., None]: ...


class NodeInfo(NamedTuple):
    """This broker as the clients of one Kafka connection are told of it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class KafkaSessionPort(PacedPort, Protocol):
    """One connection of Kafka's protocol."""

    client: str  # HOST:PORT of the peer, for people
    client_host: str
    state: dict[str, Any]  # what handlers keep for the connection
    closed: bool  # the peer has left
    on_close: list[Callable[[], None]]  # called once when it ends

    @property
    def broker(self) -> BrokerPort: ...
    @property
    def node(self) -> NodeInfo: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def client_id(self) -> str | None:
        """Of the request that is being handled: valid until the handler first returns or awaits."""

    def gather(self, laters: Sequence[LaterPort], finish: Callable[[list[Any]], Any]) -> LaterPort:
        """A Later of `finish(results)`, once all are there; a result is a value, or the exception instead of it."""


class StreamPort(Protocol):
    async def send(self, answer: Answer) -> None: ...


Handler = Callable[[SessionPort, Request], Answer | LaterPort | Coroutine[Any, Any, Answer] | Awaitable[Answer]]
