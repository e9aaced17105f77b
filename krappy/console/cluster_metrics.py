"""The broker's part in its cluster, for Prometheus: the numbers of Kafka's ReplicaManager and KafkaController.

As in Kafka, one broker counts each partition: its leader or, if it has none, the controller. So the sum over all
brokers is the cluster's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from krappy.console.slices import in_slices
from krappy.core.cluster.health import HealthCounts, count_health
from krappy.core.cluster.image import TopicImage
from krappy.core.security.operations import Op
from krappy.ports import AccessPort, BrokerPort, LookoutPort, TopicPort

P = "krappy_"


class ClusterNumbers(NamedTuple):
    """`led`: counts of the partitions that this broker leads. `offline`: how many of all partitions are offline, if
    this broker is the controller, else 0. `spoiled`: how many of this broker's replicas are damaged, or have lost
    events; `rebuilt`: how often it has begun one anew. `lags`: by follower, how many events of the partitions that this
    broker leads it lacks; `most`: how many of the partition where it lacks most."""

    brokers: int
    controls: bool
    led: HealthCounts
    offline: int
    replicas: int
    spoiled: int
    rebuilt: int
    lags: dict[int, int]
    most: dict[int, int]
    shrinks: int
    expands: int
    elections: int


async def gather_cluster(broker: BrokerPort, access: AccessPort, lookout: LookoutPort) -> ClusterNumbers:
    image, id = broker.image, broker.id
    controls = image.controller == id
    found = list(access.topics(Op.DESCRIBE).values())
    known = [image.topics[each.name] for each in found if each.name in image.topics]

    def health_of(topic: TopicImage) -> tuple[HealthCounts, int]:
        return count_health(image, topic, led_by=id), count_health(image, topic).offline if controls else 0

    led, offline = HealthCounts(), 0
    for counts, out in await in_slices(map(health_of, known)):
        led, offline = led.plus(counts), offline + out
    lags, most = Counter[int](), dict[int, int]()
    for some in await in_slices(map(_lags, found)):
        for follower, lag in some:
            lags[follower] += lag
            most[follower] = max(most.get(follower, 0), lag)
    return ClusterNumbers(
        len(image.brokers),
        controls,
        led,
        offline,
        sum(len(each.local) for each in found),
        sum(bool(partition.spoiled) for each in found for partition in each.local.values()),
        broker.measures.rebuilt_replicas,
        dict(lags),
        most,
        lookout.shrinks,
        lookout.expands,
        lookout.elections,
    )


def _lags(topic: TopicPort) -> list[tuple[int, int]]:
    return [(follower, each.lag) for partition in topic.local.values() for follower, each in partition.lags().items()]


def cluster_families(numbers: ClusterNumbers) -> Iterator[Metric]:
    n = numbers
    for name, about, value in (
        ("brokers", "Brokers that are registered in the cluster", n.brokers),
        ("active_controller", "1 if this broker is the cluster's controller", n.controls),
        ("leader_count", "Partitions that this broker leads", n.led.partitions),
        ("replica_count", "Partitions that this broker has", n.replicas),
        ("under_replicated_partitions", "Led partitions with replicas that are not in sync", n.led.under_replicated),
        (
            "under_min_isr_partitions",
            "Led partitions with fewer replicas in sync than min.insync.replicas",
            n.led.under_min_isr,
        ),
        ("spoiled_replicas", "Replicas here that are damaged or have lost events, and are not copied anew", n.spoiled),
        ("offline_partitions", "Partitions of the cluster that nobody leads, told by the controller", n.offline),
    ):
        yield GaugeMetricFamily(P + name, about, value)
    for name, about, value in (
        ("isr_shrinks", "Times that replicas left the ISR of a led partition", n.shrinks),
        ("isr_expands", "Times that replicas came back into the ISR of a led partition", n.expands),
        ("replicas_rebuilt", "Times that a damaged replica of this broker was emptied, to be copied anew", n.rebuilt),
        ("leader_elections", "Leaders that were elected while this broker was the controller", n.elections),
    ):
        yield CounterMetricFamily(P + name, about, value)
    for name, about, values in (
        ("follower_lag_events", "Events of led partitions that a follower lacks", n.lags),
        ("follower_lag_events_max", "Events that a follower lacks of the led partition where it lacks most", n.most),
    ):
        family = GaugeMetricFamily(P + name, about, labels=["follower"])
        for follower, value in sorted(values.items()):
            family.add_metric([str(follower)], value)
        yield family
