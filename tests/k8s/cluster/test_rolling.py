"""A rolling restart under load: nothing that was acknowledged is lost or comes twice, and every client goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.k8s.cluster import load
from tests.k8s.cluster.krappy import Krappy
from tests.k8s.cluster.load import Client, Publisher, Reader
from tests.k8s.cluster.sandbox import INSIDE

PUBLISHERS: dict[str, type[Publisher]] = {
    "load-blocking": load.Blocking,
    "load-async": load.Async,
    "load-kafka": load.Kafka,
}
READERS: dict[str, list[type[Reader]]] = {
    "load-blocking": [load.GroupReader],
    "load-async": [load.KafkaReader],
    "load-kafka": [load.GroupReader],
}
MORE = 1000  # events that each client is to get through before and after


@contextmanager
def under_way(clients: list[Client]) -> Iterator[None]:
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.stop()


def go_on(krappy: Krappy, clients: list[Client]) -> None:
    """Waits until each client has got through MORE further events."""
    goals = [client.count + MORE for client in clients]

    def reached() -> bool:
        for client in clients:
            if client.failure is not None:
                raise client.failure
        return all(client.count >= goal for client, goal in zip(clients, goals, strict=True))

    krappy.kubectl.until(f"{MORE} events further", reached)


def test_a_rolling_restart_loses_nothing_and_stops_nobody(krappy: Krappy) -> None:
    roll_under_load(krappy, "rolling")


def roll_under_load(krappy: Krappy, report_name: str) -> None:
    """Restarts all brokers, one after the other, while clients write and read."""
    with krappy.client() as client:
        for topic in PUBLISHERS:
            client.create_topic(topic, partitions=3)
    publishers = [kind(krappy, topic) for topic, kind in PUBLISHERS.items()]
    readers = [kind(krappy, topic) for topic, kinds in READERS.items() for kind in kinds]
    before = krappy.uid()
    with under_way([*readers]):
        with under_way([*publishers]):
            go_on(krappy, [*publishers, *readers])
            krappy.kubectl("rollout", "restart", "statefulset/krappy")
            krappy.kubectl("rollout", "status", "statefulset/krappy", "--timeout=300s")
            assert krappy.uid() != before
            go_on(krappy, [*publishers, *readers])
        acknowledged = {each.topic: sorted(each.acknowledged) for each in publishers}
        for publisher in publishers:  # in the end all that was sent is acknowledged
            assert acknowledged[publisher.topic] == list(range(publisher.sent)), publisher
        for topic, numbers in acknowledged.items():
            assert sorted(int(value or b"") for _, value in krappy.stored(topic)) == numbers, topic

        def all_seen() -> bool:
            return all(reader.count == len(acknowledged[reader.topic]) for reader in readers)

        krappy.kubectl.until("read to the end", all_seen)
    report = {
        "acknowledged and stored": {topic: len(numbers) for topic, numbers in acknowledged.items()},
        "read again": {reader.topic: reader.seen.total() - reader.count for reader in readers},
    }
    (INSIDE / "logs" / f"{report_name}.json").write_text(json.dumps(report, indent=2))
