"""The broker, and the parts of it that handlers ask for settings and facts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from krappy.core.cluster.elections import NotElected
from krappy.core.cluster.image import Image
from krappy.core.cluster.placement import Placement
from krappy.core.security.principal import Principal
from krappy.core.throttle import ReplicationQuotas
from krappy.measures import StoreMeasures
from krappy.ports.audit import AuditPort
from krappy.ports.logouts import LogoutsPort
from krappy.ports.quotas import PayerPort, UsePort
from krappy.ports.registrations import RegistrationFacts
from krappy.ports.settings import BrokerSetting, DynamicPort
from krappy.ports.tables import Bound, FoldedPort, ScanPort, SnapshotPort, WatchPort
from krappy.ports.users import UsersPort
from krappy.settings.server import ServerConfig
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.ports.access import AccessPort

Own = Any  # a PartitionPort of this broker, which takes no other one: mypy can't say that


Args = TypeVarTuple("Args")


class MovingPort(Protocol):
    @property
    def moved(self) -> Signal: ...


Moving = TypeVar("Moving", bound=MovingPort)


class BackupHold(Protocol):
    """The files of one moment, linked aside to be copied until it is closed."""

    @property
    def folder(self) -> object:
        """Its path."""

    @property
    def files(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes."""

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of one of the files. Raises InvalidRequest, StorageError."""

    def close(self) -> None: ...
    def describe(self) -> RegistrationFacts: ...


class BackupBegunPort(Protocol):
    """A cluster's backup, at this broker."""

    async def begin(self) -> None: ...
    def brokers(self) -> list[tuple[int, int]]: ...
    async def note(self, topics: Collection[str] | None) -> Sequence[tuple[str, int, int, int]]: ...
    async def hold(self, *, tree: bool) -> BackupHold: ...
    def close(self) -> None: ...


class ClockPort(Protocol):
    def now_ms(self) -> int: ...
    def steady_ms(self) -> int: ...
    def as_told(self, steady_ms: int) -> int: ...


class StillnessPort(Protocol):
    """Whether this process stood still, and may not know what was decided meanwhile."""

    @property
    def was(self) -> bool: ...
    async def until_told(self) -> None: ...


class MachinePort(Protocol):
    async def try_disk(self) -> None: ...
    def events_refused(self) -> str: ...
    def catalog_failed(self) -> str: ...
    def tables_refused(self) -> str: ...
    def failed_logs(self) -> Iterator[str]: ...
    def disk_bytes(self) -> tuple[int, int, int]: ...
    def view_sizes(self) -> dict[str, int]: ...
    def resident_bytes(self) -> int: ...


class ClusterPort(Protocol):
    """Operations on the cluster, or on this broker, as a whole."""

    @property
    def dynamic(self) -> DynamicPort: ...
    @property
    def users(self) -> UsersPort: ...
    def settings(self, advertised: str) -> Sequence[BrokerSetting]: ...
    async def place(self, partitions: int, factor: int) -> Placement: ...
    async def hold_backup(self) -> BackupHold: ...
    def new_backup(self) -> BackupBegunPort | None: ...
    async def log_dir(self) -> tuple[str, int, int]: ...
    async def new_producer_id(self) -> int: ...


class MovesPort(Protocol):
    """Changes of where partitions are, and who leads them."""

    async def reassign(self, name: str, wanted: Mapping[int, Sequence[int] | None]) -> set[int]: ...
    async def elect(self, name: str, index: int, *, unclean: bool) -> NotElected | None: ...


class BrokerPort(Protocol):
    """The broker's operations that name nothing, or take objects that the handler got through Access."""

    id: int
    version: str
    opened: bool
    started_ms: int
    http_address: str
    stopped: bool
    in_cluster: bool
    config: ServerConfig
    measures: StoreMeasures

    @property
    def stillness(self) -> StillnessPort: ...

    def access(self, principal: Principal | None = None, payer: PayerPort | None = None) -> AccessPort: ...
    @property
    def client_quotas(self) -> UsePort: ...
    @property
    def audit(self) -> AuditPort: ...
    @property
    def logouts(self) -> LogoutsPort: ...
    @property
    def machine(self) -> MachinePort: ...
    @property
    def image(self) -> Image: ...
    @property
    def quotas(self) -> ReplicationQuotas: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def clock(self) -> ClockPort: ...
    def now_ms(self) -> int: ...
    def spawn(self, run: Callable[[*Args], Awaitable[object]], *args: *Args) -> None: ...
    async def coordinator(self, topic: str, key: str) -> int: ...
    async def until_controlled(self, seconds: float) -> None: ...
    async def wait_for_moves(
        self,
        parts: Sequence[Moving],
        ready: Callable[[], bool],
        seconds: float,
        *,
        topics: bool = False,
        told: Callable[[Moving], None] | None = None,
    ) -> bool: ...
    async def wait_for_views(self, partitions: Sequence[Own], least: Mapping[int, int] | None = None) -> FoldedPort:
        """Returns once each view includes what was committed when this was called. With `least` (offsets by partition),
        once each view includes its partition's offset; the views of other partitions are taken as they are. Raises
        RequestTimeout, and the error that keeps a view from ever getting so far."""

    def scan(
        self, partitions: list[Own], prefix: Bound, start: Bound, end: Bound, *, tombstones: bool, whole: bool = False
    ) -> ScanPort:
        """A snapshot of these partitions' tables; the caller has waited for the views. Which keys: a prefix, or from
        `start` (inclusive) to `end` (exclusive). `whole`: the partitions are read as their topic's table or a part of
        it, not each for itself: a key has one row, also while the topic has strays."""

    def open_snapshot(
        self,
        partitions: list[Own],
        prefix: Bound,
        start: Bound,
        end: Bound,
        ttl_ms: int,
        *,
        tombstones: bool,
        whole: bool = False,
    ) -> SnapshotPort:
        """As `scan`, held under an id for every connection."""

    def watch(
        self,
        partitions: list[Own],
        prefix: Bound,
        start: Bound,
        end: Bound,
        *,
        tombstones: bool,
        grows_with: Mapping[int, Own] = MappingProxyType({}),
        whole: bool = False,
    ) -> WatchPort:
        """As `scan`, then every change. `grows_with`: all partitions of the topic, as they are at any time; those that
        come later are watched from their beginning."""

    async def history(
        self, partition: Own, key: bytes, offset: int, max_records: int, max_bytes: int
    ) -> tuple[list[bytes], int | None]:
        """The events of a key from `offset` on, as packed entries, and where the next page starts (None: the end)."""
