"""The cluster as this broker sees it: the brokers, the controller, the leader and the followers of each partition, how
far they are, and what changes.

Any broker tells of all partitions. Only a partition's leader knows how far its followers are, so this broker asks the
other leaders. If one does not answer soon, that is unknown (null).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.core.cluster.changes import NotedChange
from krappy.core.cluster.health import HealthCounts, count_health, healing, health
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.replica_set import FollowerLag
from krappy.core.cluster.state import NOBODY
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import ShuttingDown
from krappy.hosts import written
from krappy.ports import AccessPort, BrokerPort, LookoutPort
from krappy.types import TopicPartition

routes = Routes("cluster")
AT_ONCE = 200  # partitions that are described in one turn
LONG_S = 3600.0
Lags = Mapping[TopicPartition, Mapping[int, FollowerLag]]


class BrokerShown(msgspec.Struct):
    """A registered broker. `epoch`: rises each time that it registers. `endpoints`: HOST:PORT by the listener's name.
    `leads`, `replicas`: how many partitions of the cluster it leads, and has."""

    id: int
    epoch: int
    since_ms: int | None
    rack: str | None
    draining: bool
    endpoints: dict[str, str]
    leads: int
    replicas: int


class ReplicaShown(msgspec.Struct):
    """A replica. `eligible`: it left the ISR when that was too small to acknowledge more, so it may still lead (ELR).
    `offset`: it has everything before this offset on its disk. `lag`: how many of the leader's events it lacks.
    `behind_ms`: how long ago it last had all of them. These three are null for the leader, and if they are not known.
    `healing`: what is wrong with it, or how it is repaired: "spoiled (…)", "begins anew", "old folder"; null: nothing
    is known to be wrong."""

    broker: int
    alive: bool
    in_sync: bool
    eligible: bool
    offset: int | None
    lag: int | None
    behind_ms: int | None
    healing: str | None


class PartitionShown(msgspec.Struct):
    """A partition. `leader`: null if nobody leads it. `isr`: the replicas in sync. `adding`, `removing`: the replicas
    that a reassignment brings, and takes away."""

    partition: int
    leader: int | None
    leader_epoch: int
    isr: list[int]
    elr: list[int]
    min_isr: int
    replicas: list[ReplicaShown]
    adding: list[int]
    removing: list[int]
    offline: bool
    under_replicated: bool
    under_min_isr: bool


class TopicPlaced(msgspec.Struct):
    name: str
    partitions: list[PartitionShown]


class ClusterState(msgspec.Struct):
    """The counts are those of the whole cluster. `told_by`: the broker that tells this. `alone`: it is no member of a
    cluster. `last_change`: the number of the last change that it has seen, for `/cluster/changes?after=`. `after`: give
    it to get the next topics; null at the end."""

    cluster_id: str
    told_by: int
    alone: bool
    now_ms: int
    controller: int | None
    brokers: list[BrokerShown]
    partitions: int
    offline: int
    under_replicated: int
    under_min_isr: int
    last_change: int
    topics: list[TopicPlaced]
    after: str | None


class ChangeShown(msgspec.Struct):
    """A change, as the broker saw it. `broker`: who came, went, became the controller or the leader; null: nobody.
    `before`, `after`: the ISRs."""

    number: int
    at_ms: int
    kind: str
    text: str
    broker: int | None
    topic: str | None
    partition: int | None
    leader_epoch: int | None
    before: list[int]
    after: list[int]


class ChangesShown(msgspec.Struct):
    changes: list[ChangeShown]


class StateQuery(msgspec.Struct, forbid_unknown_fields=True):
    filter: Annotated[str, Meta(description="only topics whose names contain this, in upper or lower case")] = ""
    after: Annotated[str, Meta(description="only topics after this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000, description="no further topics after so many partitions")] = 1000
    troubled: Annotated[bool, Meta(description="only partitions that are offline or have replicas not in sync")] = False


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: (
        Annotated[
            int, Meta(ge=0, le=2**63 - 1, description="the last change that is known; default: begin with new ones")
        ]
        | None
    ) = None


@routes.get(
    "/cluster/state",
    needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="The cluster: brokers, controller, and the partitions with leaders, replicas, ISRs and lags",
)
async def cluster_state(call: Call, query: StateQuery) -> ClusterState:
    call.access.cluster(Op.DESCRIBE)
    broker, image, lookout = call.broker, call.broker.image, call.lookout
    last = lookout.last
    names = sorted(call.access.topics(Op.DESCRIBE).keys() & image.topics.keys())
    counts, leads, holds = HealthCounts(), dict.fromkeys(image.brokers, 0), dict.fromkeys(image.brokers, 0)
    for name in names:
        topic = image.topics[name]
        counts = counts.plus(count_health(image, topic))
        for number, each in enumerate(topic.partitions, 1):
            for id in each.replicas:
                holds[id] = holds.get(id, 0) + 1
            leads[each.state.leader] = leads.get(each.state.leader, 0) + 1
            if number % AT_ONCE == 0:
                await call.pause()
        await call.pause()
    chosen, after = _page(image, names, query)
    shown: list[tuple[TopicImage, list[int]]] = []
    for name in chosen:
        topic = image.topics[name]
        indexes = [
            index
            for index, each in enumerate(topic.partitions)
            if not query.troubled or _is_troubled(image, name, index, each)
        ]
        if indexes:
            shown.append((topic, indexes))
        await call.pause()
    lags = await lookout.lags(_led(shown))
    return ClusterState(
        broker.cluster_id,
        broker.id,
        not broker.config.zookeeper_connect,
        broker.now_ms(),
        image.controller,
        [_broker(image, id, leads, holds) for id in sorted(image.brokers)],
        *counts,
        last,
        [await _placed(call, image, topic, indexes, lags) for topic, indexes in shown],
        after,
    )


def _page(image: Image, names: list[str], query: StateQuery) -> tuple[list[str], str | None]:
    """(the names of one page, `after` of the next one)."""
    wanted = query.filter.casefold()
    passed = [name for name in names if wanted in name.casefold()]
    found: list[str] = []
    count = 0
    for name in passed[bisect_right(passed, query.after) if query.after else 0 :]:
        if count >= query.limit:
            return found, found[-1]
        found.append(name)
        count += len(image.topics[name].partitions)
    return found, None


def _is_troubled(image: Image, topic: str, index: int, partition: PartitionImage) -> bool:
    healed = (healing(image, topic, index, partition, each) for each in partition.replicas)
    return any(health(image, partition)) or any(healed)


def _led(shown: list[tuple[TopicImage, list[int]]]) -> dict[int, list[TopicPartition]]:
    """The partitions that have followers, by leader."""
    found: dict[int, list[TopicPartition]] = {}
    for topic, indexes in shown:
        for index in indexes:
            each = topic.partitions[index]
            if each.state.leader != NOBODY and len(each.replicas) > 1:
                found.setdefault(each.state.leader, []).append(TopicPartition(topic.name, index))
    return found


def _broker(image: Image, id: int, leads: Mapping[int, int], holds: Mapping[int, int]) -> BrokerShown:
    found = image.brokers[id]
    endpoints = {name: written(host, port) for name, (host, port) in found.endpoints.items()}
    return BrokerShown(
        id, found.epoch, found.since_ms, found.rack, found.draining, endpoints, leads.get(id, 0), holds.get(id, 0)
    )


async def _placed(call: Call, image: Image, topic: TopicImage, indexes: list[int], lags: Lags) -> TopicPlaced:
    rows = []
    for number, index in enumerate(indexes, 1):
        rows.append(_partition(image, topic, index, lags.get(TopicPartition(topic.name, index), {})))
        if number % AT_ONCE == 0:
            await call.pause()
    return TopicPlaced(topic.name, rows)


def _partition(image: Image, topic: TopicImage, index: int, lags: Mapping[int, FollowerLag]) -> PartitionShown:
    partition = topic.partitions[index]
    state = partition.state
    replicas = []
    for id in partition.replicas:
        lag = None if id == state.leader else lags.get(id)
        offset, events, ms = (None, None, None) if lag is None else (lag.offset, lag.lag, _whole(lag.caught_up_ms))
        standing = id in image.brokers, id in state.isr, id in state.elr
        ails = healing(image, topic.name, index, partition, id)
        replicas.append(ReplicaShown(id, *standing, offset, events, ms, ails))
    return PartitionShown(
        index,
        None if state.leader == NOBODY else state.leader,
        state.leader_epoch,
        list(state.isr),
        list(state.elr),
        state.min_isr,
        replicas,
        list(partition.adding),
        list(partition.removing),
        *health(image, partition),
    )


def _whole(ms: float | None) -> int | None:
    return None if ms is None else int(ms)


class LiveChanges:
    """Sends `changes` until the reader leaves: first the remembered ones after number `after`, at most 1,000. Leaves
    out those of topics that `access` may not describe."""

    def __init__(self, broker: BrokerPort, access: AccessPort, lookout: LookoutPort, after: int) -> None:
        self._broker, self._access, self._lookout, self._after = broker, access, lookout, after

    async def run(self, send: Any) -> None:
        while True:
            found = self._lookout.after(self._after)
            if found:
                self._after = found[-1].number
                shown = [_shown(each) for each in found if self._may_show(each)]
                await send("changes", ChangesShown(shown), str(self._after))
            await self._broker.wait_for_moves([self._lookout], self._has_news, LONG_S)
            if self._broker.stopped:
                raise ShuttingDown("the broker is shutting down")

    def _may_show(self, noted: NotedChange) -> bool:
        topic = noted.change.topic
        return not topic or self._access.may(Resource.TOPIC, topic, Op.DESCRIBE)

    def _has_news(self) -> bool:
        return self._lookout.last > self._after


def _shown(noted: NotedChange) -> ChangeShown:
    change = noted.change
    return ChangeShown(
        noted.number,
        noted.at_ms,
        change.kind,
        change.text,
        change.broker,
        change.topic,
        change.partition,
        change.leader_epoch,
        list(change.before),
        list(change.after),
    )


@routes.get(
    "/cluster/changes",
    needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="Live: elections, ISRs, brokers, controllers and topics, as this broker sees them",
    live=True,
)
async def cluster_changes(call: Call, query: ChangesQuery) -> LiveChanges:
    call.access.cluster(Op.DESCRIBE)
    return LiveChanges(
        call.broker, call.access, call.lookout, call.lookout.last if query.after is None else query.after
    )
