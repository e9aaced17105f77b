"""The port to the cluster that this broker is a member of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.registration import Loss
from krappy.core.throttle import ReplicationQuota
from krappy.errors import KrappyError
from krappy.ports.partitions import TransactionEnd
from krappy.ports.replication import FollowerPort
from krappy.ports.shares import SharePeersPort
from krappy.ports.store import Store
from krappy.types import TopicPartition
from krappy.waiting import Signal


class HomePort(Protocol):
    """What a broker's registration tells. `directory`: the id of its data folder, whose lock this process holds.
    `boot`: the id of the machine's boot, if the folder loses events with the machine's memory; else "". `endpoints`:
    host and port by the listener's name. `moved`: fired when `away` has changed."""

    directory: str
    boot: str
    endpoints: Mapping[str, tuple[str, int]]

    @property
    def moved(self) -> Signal: ...

    @property
    def away(self) -> bool:
        """Whether the data folder is not where it was: then nobody may count on what this broker has."""

    async def new_start(self, registered: str) -> tuple[str, bool]:
        """As `LocalReplicas.new_start`."""

    @property
    def pulse(self) -> int:
        """The count of `store.pulse.Pulse`."""

    @property
    def lease(self) -> int:
        """The version of its lease that this broker has written last; -1: none is known."""

    def beat(self) -> None:
        """To be called again and again while the broker is registered: raises the count from time to time."""

    def producer_ids(self, following: int) -> int:
        """The first producer id from `following` on that is above all that the logs here know."""

    def renewed(self, lease: int) -> None:
        """To be called when the broker has written this version of its lease."""

    async def doubt(self) -> None:
        """To be called before the broker registers, if ZooKeeper was given older data: from now on all that the logs
        here have may be committed."""

    def has_lost(self, topic: TopicImage, index: int) -> Loss | None:
        """What this folder may have lost of a partition that others count on."""

    def seen_epoch(self, topic: TopicImage, index: int) -> int:
        """The last leader epoch of a partition that this broker has seen, or has events of; -1: none. Events of an
        impossible epoch are damaged."""

    def told(self) -> None:
        """To be called when the broker is registered, and nobody counts on this folder for what it has lost."""


class MembershipPort(Store, Protocol):
    """The cluster's tree, and this broker's membership. `changed` is fired when `epoch` has changed, too."""

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 while it is not registered."""

    @property
    def is_current(self) -> bool:
        """Whether the image has everything that this broker was told of."""

    def may_read(self) -> bool:
        """Whether it holds the read lease now. Then nobody has taken its place as a leader."""

    async def run(self, started: Callable[[], None]) -> None:
        """Until cancelled. Calls `started` when it has the first whole image."""

    def join(self, home: HomePort) -> None:
        """From now on the broker registers whenever it is not registered."""

    async def close(self) -> None:
        """Ends the session, so that others see at once that this broker is gone."""


class TransactionPeersPort(Protocol):
    """Asks other brokers for their part in transactions. Raises ConnectionLost, RequestTimeout, ProtocolError."""

    async def write_markers(
        self, broker: int, end: TransactionEnd, partitions: Sequence[TopicPartition]
    ) -> list[KrappyError | None]:
        """WriteTxnMarkers, to the leader of these partitions: for each the error, or None: the transaction has ended
        there."""

    async def verify(
        self, broker: int, name: str, producer_id: int, epoch: int, at: TopicPartition, *, adds: bool
    ) -> int:
        """AddPartitionsToTxn, to verify only unless `adds`: asks the coordinator of this transactional id. Gives the
        number of its transaction. Raises InvalidTransaction, ProducerFenced, UnknownProducerMapping; BrokerError when
        it can't tell."""


class PeerRead(NamedTuple):
    """What the leader of a partition tells of it: where its log starts, its last stable offset and high watermark, and
    committed batches without their aborted events. `next_offset`: the offset after these."""

    start: int
    last_stable: int
    high_watermark: int
    data: bytes | memoryview
    next_offset: int
    records: int


Place = tuple[TopicPartition, bytes]  # a partition, and its topic's id


class LogPeersPort(TransactionPeersPort, SharePeersPort, Protocol):
    """Asks other brokers also for what they keep of share groups, appends to logs that they lead, and reads these."""

    async def fetch(
        self, broker: int, wanted: Mapping[Place, tuple[int, int]], max_bytes: int, wait_s: float
    ) -> Mapping[Place, PeerRead | KrappyError]:
        """Fetch: what each of these partitions has from an offset on, at most `max_bytes` each, or one larger batch.
        Waits up to `wait_s` seconds until one has something. `wanted`: (offset, leader epoch). For a partition that the
        broker leads in another epoch, NotLeader is given."""

    async def offsets_at(
        self, broker: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> Mapping[TopicPartition, int | KrappyError]:
        """ListOffsets: in each of these the offset of the first event at or after a time (ms), -1 if there is none;
        for the time -1 the last stable offset."""

    async def end_of_epoch(self, broker: int, at: TopicPartition, current: int, epoch: int) -> tuple[int, int] | None:
        """OffsetForLeaderEpoch, to the leader in epoch `current`: (the highest leader epoch up to `epoch` that its log
        has, the offset behind the events of that epoch); None: it does not know. Raises NotLeader, BrokerError."""

    async def append(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        """Produce, with acks=all: returns once the batch is committed. Raises as above, and BrokerError."""

    async def append_audit(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        """As `append`, to the topic of the audit log, which only brokers write to."""

    async def append_staged(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> int:
        """As `append`, a batch of a staged job. Gives its offset. Raises RecordTooLarge as well."""


class FetcherPort(Protocol):
    """Copies the partitions that this broker follows from their leaders. `quota`: of those that are throttled."""

    quota: ReplicationQuota

    def set(self, partitions: Iterable[FollowerPort]) -> None:
        """From now on these are followed, and no others."""

    def changed(self) -> None:
        """To be called when a partition has another leader or epoch, or the image or the broker's epoch has changed."""

    async def run(self) -> None:
        """Until cancelled."""
