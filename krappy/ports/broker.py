"""The broker, and those of its parts that handlers ask for settings and facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from krappy.core.cluster.image import Image
from krappy.measures import StoreMeasures
from krappy.ports.tables import Bound, FoldedPort, ScanPort, SnapshotPort
from krappy.settings.topic_table import Changes, Given, Setting

if TYPE_CHECKING:
    from krappy.ports.access import AccessPort


class SettingsPort(Protocol):
    """Settings that can be changed while the broker runs: of a broker (by its id, "" for all), or of a group."""

    @property
    def known(self) -> Mapping[str, Setting]: ...
    def held(self, name: str) -> Mapping[str, str]: ...
    def effective(self, name: str) -> Mapping[str, str]: ...
    def check(self, name: str, changes: Mapping[str, Given]) -> Any: ...
    async def alter(self, name: str, wanted: Changes) -> None: ...


class TopicNamesPort(Protocol):
    def check(self, name: str) -> None: ...


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
    """What is done to the cluster, or to this broker, as a whole."""

    @property
    def dynamic(self) -> Any: ...
    @property
    def names(self) -> TopicNamesPort: ...
    def settings(self, advertised: str) -> Sequence[Any]: ...
    async def hold_backup(self) -> Any: ...
    async def log_dir(self) -> tuple[str, int, int]: ...
    async def new_producer_id(self) -> int: ...


class BrokerPort(Protocol):
    """What a broker does for handlers with what they have reached already, and what names nothing."""

    id: int
    version: str
    opened: bool
    started_ms: int
    stopped: bool
    stopping: Any  # a signal: it begins to stop
    config: Any  # ServerConfig
    measures: StoreMeasures

    def access(self) -> AccessPort: ...
    @property
    def machine(self) -> MachinePort: ...
    @property
    def image(self) -> Image: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def clock(self) -> Any: ...
    def now_ms(self) -> int: ...
    def spawn(self, run: Callable[..., Any], *args: Any) -> None: ...
    def coordinator(self, topic: str, key: str) -> int: ...
    async def wait_for_moves(
        self, parts: Sequence[Any], ready: Callable[[], bool], seconds: float, *, topics: bool = False, told: Any = None
    ) -> bool: ...
    async def wait_for_views(self, partitions: Sequence[Any], min_offset: int | None = None) -> FoldedPort:
        """Returns once each view includes what was committed when this was called, or `min_offset`. Raises
        RequestTimeout, and why a view never will."""

    def scan(
        self, partitions: list[Any], prefix: Bound, start: Bound, end: Bound, *, tombstones: bool, whole: bool = False
    ) -> ScanPort:
        """A snapshot of these partitions' tables; the caller has waited for the views. Which keys: a prefix, or from
        `start` (inclusive) to `end` (exclusive). `whole`: they are read as a part of their topic, or all of it, not
        each for itself: a key has one row, also while the topic has strays."""

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
    ) -> SnapshotPort:
        """As `scan`, held under an id for every connection."""

    def watch(
        self,
        partitions: list[Any],
        prefix: Bound,
        start: Bound,
        end: Bound,
        *,
        tombstones: bool,
        grows_with: Mapping[int, Any] = MappingProxyType({}),
        whole: bool = False,
    ) -> Any:
        """As `scan`, then every change. `grows_with`: all partitions of the topic, as they are at any time; those that
        come later are watched from their beginning."""

    async def history(
        self, partition: Any, key: bytes, offset: int, max_records: int, max_bytes: int
    ) -> tuple[list[bytes], int | None]:
        """The events of a key from `offset` on, as packed entries, and where the next page starts (None: the end)."""
