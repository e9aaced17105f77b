"""The two ends of replication: a partition that this broker follows, and one that it leads, as a replica fetches it.

Offsets are exclusive: behind the last event. `krappy.cluster.fetcher` drives followers; the handler of Fetch serves
replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from krappy.core.cluster.replica_set import FollowerLag
from krappy.core.epochs import Epochs
from krappy.errors import KrappyError
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.ports.partitions import Raw


class FollowerPort(Protocol):
    """A partition that this broker follows. A method that takes an `epoch` does nothing if the partition does not
    follow in that epoch any more. All methods raise StorageError when the disk refuses, and CorruptBatch."""

    topic: str
    index: int

    @property
    def topic_id(self) -> bytes: ...
    @property
    def epoch(self) -> int:
        """The leader epoch that it follows in."""

    @property
    def leader(self) -> int:
        """The broker that it follows; NOBODY if there is none."""

    @property
    def start_offset(self) -> int:
        """Where its log begins."""

    @property
    def is_throttled(self) -> bool:
        """Whether it is copied no faster than the broker's quota allows: it is throttled, and not in sync (KIP-73)."""

    def position(self) -> tuple[int, int]:
        """(the offset behind its last event on disk, the leader epoch of that event; -1 without one)."""

    async def last_batch(self) -> tuple[int, int] | None:
        """(the base offset of its last batch, the leader epoch of the event before it), to ask its leader for that
        batch. None: there is no such batch, or nothing to ask by."""

    async def compare(self, epoch: int, data: bytes | memoryview, high_watermark: int) -> None:
        """Takes what its leader has from the base offset of its own last batch on. If another batch is there, of the
        same leader epoch, cuts its log where that epoch begins. `high_watermark`: the leader's."""

    async def append(self, epoch: int, data: bytes | memoryview, high_watermark: int, log_start: int) -> None:
        """Appends whole batches as the leader's log has them, and takes the leader's high watermark and log start.
        `data` may be empty. Drops a batch with a leader epoch above `epoch`, and all behind it (KAFKA-18723). Neither
        the events nor the high watermark are in force before `sync`."""

    async def sync(self) -> None:
        """Puts on disk what was appended. Then its high watermark follows the leader's, up to its end on disk."""

    async def diverged(self, epoch: int, diverging: tuple[int, int], high_watermark: int) -> None:
        """Cuts its log where it parts from the leader's. `diverging`: as `Epochs.diverging` gave it to the leader.
        `high_watermark`: the leader's. Raises CorruptBatch, and cuts nothing, if committed events would go, and no
        unclean election has allowed that."""

    async def start_over(self, epoch: int, log_start: int) -> None:
        """Empties its log and its view, and begins at the leader's log start."""


class LeaderPort(Protocol):
    """A partition that this broker leads, for the replicas that fetch it."""

    index: int

    @property
    def epochs(self) -> Epochs: ...
    @property
    def epoch(self) -> int: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def end_offset(self) -> int:
        """The log's end. The last events may not be on disk yet."""

    @property
    def gone(self) -> KrappyError | None:
        """The error that it went away with, if it did."""

    @property
    def grown(self) -> Signal:
        """Fires when the log's end rose."""

    @property
    def moved(self) -> Signal:
        """Fires when the high watermark rose, or the partition is not led any more."""

    def fetched_by(self, replica: int, broker_epoch: int, offset: int, start: int = 0) -> None:
        """Notes that a replica has everything from `start` to before `offset` on its disk. The high watermark may
        rise."""

    def is_outdated(self, replica: int, broker_epoch: int, offset: int) -> bool:
        """Whether a replica that has events, all of them before `offset`, has to begin anew: some may have been deleted
        meanwhile by tombstones that are not in this log any more."""

    def throttles(self, replica: int) -> bool:
        """Whether a replica is sent events no faster than the broker's quota allows: the leader is throttled, and the
        replica not in sync (KIP-73)."""

    def lags(self) -> Mapping[int, FollowerLag]:
        """How far its followers are that have fetched in this leader epoch, by broker id."""

    def fetch_all_now(self, offset: int, max_bytes: int, *, min_one: bool = True) -> Raw:
        """As `SourcePort.fetch_now`, but up to the log's end."""

    async def fetch_all(self, offset: int, max_bytes: int, *, min_one: bool = True) -> Raw:
        """As `fetch_all_now`, but waits for the disk where it must."""
