"""What serves staged jobs at one broker, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from krappy.broker.staging.cluster_publishing import ClusterPublisher
from krappy.broker.staging.keeping import LocalJobs
from krappy.broker.staging.publishing import LocalPublisher
from krappy.broker.staging.replicated import ReplicatedJobs
from krappy.broker.staging.staging import StagingCoordinator
from krappy.store.staging import StagedFiles

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.topic import Topic
    from krappy.broker.transactions.markers import Markers
    from krappy.broker.transactions.producer_ids import ProducerIds
    from krappy.ports.cluster import LogPeersPort


def staging_parts(
    runtime: Runtime,
    producer_ids: ProducerIds,
    topic_for: Callable[[str], Awaitable[Topic]],
    check_room: Callable[[int], None],
    markers: Markers,
    peers: LogPeersPort | None,
) -> StagingCoordinator:
    """`markers`, `peers`: of a cluster; `peers` None: this broker is alone."""
    files = StagedFiles(runtime.config.data / "staging")
    made = StagingCoordinator(runtime, files, producer_ids, topic_for, check_room)
    if peers is None:
        made.keeper = LocalJobs(runtime, files, made.take)
        made.publisher = LocalPublisher(runtime, files, producer_ids)
    else:
        made.keeper = ReplicatedJobs(runtime, files, made.take, made.forget)
        made.publisher = ClusterPublisher(runtime, producer_ids, markers, peers)
    return made
