"""The internal topics: `__staged_jobs`, and Kafka's for clients that look for them, such as `__consumer_offsets` and
`__transaction_state`.

A broker that is alone keeps in its meta database what a Kafka broker keeps in them. So they are empty there, have no
folder, are not in the catalog and can't be written to. Clients can always ask for them by name. They are listed from
when Kafka would have created them: when a client first asks for the coordinator of a group, or of a transactional id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from krappy.broker.topics.topic import not_led
from krappy.core.cluster.demands import MIN_INSYNC
from krappy.core.cluster.image import PartitionImage, TopicImage
from krappy.core.cluster.placement import DEFAULT
from krappy.core.cluster.state import PartitionState
from krappy.core.epochs import Epochs
from krappy.errors import KrappyError
from krappy.ports import ActiveProducer, Raw
from krappy.settings.topic import JOBS as JOBS
from krappy.settings.topic import OFFSETS as OFFSETS
from krappy.settings.topic import SHARES as SHARES
from krappy.settings.topic import TRANSACTIONS as TRANSACTIONS
from krappy.settings.topic import TopicConfig
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.settings.server import ServerConfig

PARTITIONS = 50  # of each, as in Kafka; in a cluster transaction.state.log.num.partitions may set another number
_LOG = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
INTERNAL: Mapping[str, Mapping[str, str]] = {
    OFFSETS: {**_LOG, "compression.type": "producer"},
    TRANSACTIONS: {**_LOG, "compression.type": "uncompressed"},
    SHARES: {**_LOG, "compression.type": "uncompressed"},
    JOBS: {**_LOG, "compression.type": "uncompressed"},
}
# In a cluster these have what is kept of groups, transactional ids and staged jobs, and are replicated as any topic. A
# write about one name is one batch, which may be large. All is loaded from their views, so they have views whatever the
# default for other topics is.
_KEPT = {"max.message.bytes": str(16 << 20), "view.enable": "true"}


class ShapeInCluster(NamedTuple):
    """What an internal topic of a cluster is made with. `factor`: replicas of each partition."""

    partitions: int
    factor: int
    settings: dict[str, str]


def shape_in_cluster(name: str, config: ServerConfig) -> ShapeInCluster:
    settings = settings_in_cluster(name)
    factor = config.default_replication_factor
    if name != TRANSACTIONS:
        return ShapeInCluster(PARTITIONS, factor, settings)
    if config.transaction_state_log_replication_factor != DEFAULT:
        factor = config.transaction_state_log_replication_factor
    settings[MIN_INSYNC] = str(config.transaction_state_log_min_isr)
    return ShapeInCluster(config.transaction_state_log_num_partitions, factor, settings)


def settings_in_cluster(name: str) -> dict[str, str]:
    """The settings of an internal topic of a cluster, without those that the broker's own settings give."""
    return {**INTERNAL[name], **_KEPT}


class InternalPartition:
    """Implements `krappy.ports.SourcePort`: a log that is always empty."""

    epoch = high_watermark = readable_end = start_offset = last_stable_offset = size = 0
    epochs = Epochs([(0, 0)])
    gone: KrappyError | None = None
    offline = ""

    def __init__(self, topic: str, index: int, moved: Signal) -> None:
        self.topic = topic
        self.index = index
        self.moved = moved

    def producers(self) -> list[ActiveProducer]:
        return []

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        return []

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        return 0

    def told_earliest(self) -> int:
        return 0

    def out_of_range(self) -> None:
        """Does nothing."""

    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        return Raw(b"", offset)

    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        return Raw(b"", offset)

    async def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None:
        return None

    async def find_latest_time(self, limit: int) -> tuple[int, int] | None:
        return None


class InternalTopic:
    """An internal topic, with what handlers need of a topic. `internal` distinguishes it from others."""

    internal = True
    deleted = False

    def __init__(self, name: str, cluster_id: str, broker: int) -> None:
        self.name = name
        self.id = uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id}/{name}").bytes  # the same after every start
        state = PartitionState(broker, 0, 0, (broker,))
        self.count = PARTITIONS
        self.image = TopicImage(name, self.id, (PartitionImage((broker,), state, 0),) * PARTITIONS)
        self.given = INTERNAL[name]
        self.defaults: Mapping[str, str] = {}
        self.config = TopicConfig.parse(self.given)
        moved = Signal()
        self._partitions = [InternalPartition(name, index, moved) for index in range(PARTITIONS)]

    def see(self, image: TopicImage) -> None:
        """Takes what the cluster knows of it."""
        self.id, self.image, self.count = image.id, image, len(image.partitions)

    def is_offline(self, index: int) -> bool:
        return False

    def led(self, index: int) -> InternalPartition:
        """Raises UnknownPartition."""
        if 0 <= index < PARTITIONS:
            return self._partitions[index]
        raise not_led(self.image, index)


class InternalTopics:
    def __init__(self, cluster_id: str, broker: int, changed: Signal) -> None:
        """`broker`: the broker's id. `changed`: fired when another topic is listed."""
        self._cluster_id, self._broker, self._changed = cluster_id, broker, changed
        self._used: set[str] = set()

    @cached_property
    def by_name(self) -> dict[str, InternalTopic]:
        return {name: InternalTopic(name, self._cluster_id, self._broker) for name in INTERNAL}

    def find(self, name: str) -> InternalTopic | None:
        """None: no internal topic has this name."""
        return self.by_name[name] if name in INTERNAL else None

    @property
    def by_id(self) -> dict[bytes, InternalTopic]:
        return {topic.id: topic for topic in self.by_name.values()}

    def see(self, image: TopicImage) -> None:
        """Takes what the cluster knows of one of them."""
        self.by_name[image.name].see(image)
        self.use(image.name)

    def use(self, name: str) -> None:
        """From now on it is listed."""
        if name not in self._used:
            self._used.add(name)
            self._changed.fire()

    def listed(self) -> list[InternalTopic]:
        return [self.by_name[name] for name in INTERNAL if name in self._used]
