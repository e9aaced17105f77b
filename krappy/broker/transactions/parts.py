"""What serves transactions at one broker, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krappy.broker.transactions.ending import TransactionEnds
from krappy.broker.transactions.markers import ClusterMarkers, LocalMarkers
from krappy.broker.transactions.participant import TransactionParticipant
from krappy.broker.transactions.transactions import TransactionCoordinator
from krappy.store.transactions import TransactionStore

if TYPE_CHECKING:
    from krappy.broker.coordinators import Coordinators
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.producer_ids import ProducerIds
    from krappy.ports.cluster import TransactionPeersPort


def transaction_parts(
    runtime: Runtime,
    coordinators: Coordinators,
    groups: KafkaGroups,
    producer_ids: ProducerIds,
    peers: TransactionPeersPort | None,
) -> tuple[TransactionCoordinator, TransactionParticipant]:
    """`peers`: None: this broker is alone."""
    ends = TransactionEnds(runtime, groups)
    markers = LocalMarkers(runtime, groups) if peers is None else ClusterMarkers(runtime, ends, peers)
    store = TransactionStore(runtime.meta)
    coordinator = TransactionCoordinator(runtime, store, producer_ids, markers, replicated=peers is not None)
    return coordinator, TransactionParticipant(runtime, coordinators, coordinator, groups, ends, peers)
