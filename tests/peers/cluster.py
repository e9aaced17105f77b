"""Measures a cluster of three brokers: Krappy with a ZooKeeper, beside Apache Kafka (KRaft). Each topic is on all three
brokers, and one client (driver.c) makes the load: `make peers-cluster`.

Each event has three replicas and is acknowledged by acks=all, and min.insync.replicas is 2. In each round the clusters
run one after the other. All brokers of a cluster and the load are on one machine: what is measured is the work that
replication takes, not the network.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.zookeeper import Missing as NoZooKeeper
from tests.cluster.zookeeper import zookeepers
from tests.compat.admin import one
from tests.compat.clients.base import PATIENCE
from tests.compat.servers import KafkaServer
from tests.compat.tools import Missing
from tests.peers.command import compare, parser
from tests.peers.compare import SHAPES
from tests.peers.driver import build, drive
from tests.peers.pauses import Pauses
from tests.peers.peer import rss
from tests.peers.report import note, summary
from tests.process import free_ports, spawned

BROKERS = 3
PARTITIONS = 6  # of the topic whose leaders are killed
WARM_S = 8
CALM_S = 3.0  # seconds before a kill
QUIET_S, LOOK_S = 5.0, 60.0  # a failover is over after QUIET_S without a pause, and is watched for LOOK_S at most
Results = dict[str, list[float]]


class Cluster(Protocol):
    """Three running brokers."""

    address: str  # bootstrap.servers

    def processes(self) -> list[int]:
        """The ids of all its processes."""

    def kill(self, broker: int) -> None:
        """Sends SIGKILL to a broker."""

    def stop(self, broker: int) -> None:
        """Sends SIGTERM to a broker."""

    def restart(self, broker: int) -> None: ...


class KrappyCluster:
    def __init__(self, made: ClusterProcesses) -> None:
        self._made = made
        self.address = made.kafka

    def processes(self) -> list[int]:
        return [self._made.zookeeper.pid, *(each.pid for each in self._made.brokers.values())]

    def kill(self, broker: int) -> None:
        self._made.brokers[broker].kill()

    def stop(self, broker: int) -> None:
        self._made.brokers[broker].stop()

    def restart(self, broker: int) -> None:
        self._made.brokers[broker].start()


class KafkaCluster:
    """Each node of Kafka is both broker and controller."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        controllers = free_ports(BROKERS)
        self._nodes = {
            id: KafkaServer(folder / f"node-{id}", heap="1g", node=id, controllers=controllers, **settings)
            for id in range(1, BROKERS + 1)
        }
        self.address = ",".join(each.address for each in self._nodes.values())

    def start(self) -> None:
        for each in self._nodes.values():
            each.begin()
        for each in self._nodes.values():
            each.ready()

    def processes(self) -> list[int]:
        return [each.pid for each in self._nodes.values()]

    def kill(self, broker: int) -> None:
        self._nodes[broker].kill()

    def stop(self, broker: int) -> None:
        self._nodes[broker].stop()

    def restart(self, broker: int) -> None:
        self._nodes[broker].start()

    def close(self) -> None:
        for each in self._nodes.values():
            each.kill()


@contextmanager
def krappy(folder: Path) -> Iterator[Cluster]:
    try:
        with (
            zookeepers(folder / "zookeeper") as [zookeeper],
            brokers(folder, BROKERS, shared=SharedProcesses(zookeeper, spawned)) as made,
        ):
            yield KrappyCluster(made)
    except NoZooKeeper as reason:
        raise Missing(str(reason)) from None


@contextmanager
def kafka(folder: Path, **settings: Any) -> Iterator[Cluster]:
    made = KafkaCluster(folder, **settings)
    try:
        made.start()
        yield made
    finally:
        made.close()


KINDS: dict[str, tuple[Callable[[Path], AbstractContextManager[Cluster]], str]] = {
    "krappy": (
        krappy,
        "Krappy by default: an acknowledged event is on disk at each replica in sync; with one ZooKeeper",
    ),
    "kafka-fsync": (
        lambda folder: kafka(folder, log_flush_interval_messages=1),
        "Kafka, log.flush.interval.messages=1",
    ),
    "kafka": (kafka, "Kafka by default: an acknowledged event is in the page cache of each replica in sync"),
}


class Measured:
    """The measures of one running cluster."""

    def __init__(self, cluster: Cluster, results: Results) -> None:
        self._cluster, self._results = cluster, results
        self._admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
        self._topics = 0

    def note(self, measure: str, value: float) -> None:
        note(self._results, measure, value)

    def topic(self, partitions: int) -> str:
        """Creates a topic with three replicas; returns its name once all its partitions are led and in sync."""
        self._topics += 1
        name = f"peers-{self._topics}"
        wanted = NewTopic(name, partitions, BROKERS, config={"min.insync.replicas": "2"})
        end = time.monotonic() + PATIENCE
        while len(self._admin.list_topics(timeout=PATIENCE).brokers) < BROKERS:
            assert time.monotonic() < end, "not all brokers are there"
            time.sleep(0.1)
        one(self._admin.create_topics([wanted]))
        self.until_in_sync(name, partitions)
        return name

    def until_in_sync(self, topic: str, partitions: int) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            found = self._admin.list_topics(topic, PATIENCE).topics[topic].partitions.values()
            if len(found) == partitions and all(len(each.isrs) == BROKERS and each.leader > 0 for each in found):
                return
            assert time.monotonic() < end, f"{topic} is not in sync: {[(each.leader, each.isrs) for each in found]}"
            time.sleep(0.1)

    def leader(self, topic: str) -> int:
        found: int = self._admin.list_topics(topic, PATIENCE).topics[topic].partitions[0].leader
        return found

    def memory(self) -> float:
        """MiB of RAM that its processes have."""
        return sum(map(rss, self._cluster.processes()))

    def throughput(self, scale: float) -> None:
        """Events a second, written with acks=all, then read from the beginning of the log."""
        for size, partitions in SHAPES:
            count = int((2_000_000 if size == 100 else 500_000) * scale)
            topic = self.topic(partitions)
            label = f"{size} B, {partitions} partition{'s' * (partitions > 1)}"
            made = drive("produce", self._cluster.address, topic, partitions, count, size, 0)
            self.note(f"produce {label}", count / made["seconds"])
            read = drive("consume", self._cluster.address, topic, partitions)
            self.note(f"consume {label}", read["per_second"])
            one(self._admin.delete_topics([topic]))
        self.note("memory loaded (MiB)", self.memory())

    def latency(self, scale: float) -> None:
        """Milliseconds from when an event is due to be sent until a consumer has it, at 1,000 events/s."""
        topic = self.topic(1)
        found = drive("latency", self._cluster.address, topic, 1000, max(2, int(10 * scale)))
        for name in ("p50", "p99"):
            self.note(f"latency {name} (ms)", found[name] * 1000)
        one(self._admin.delete_topics([topic]))

    def failover(self, kills: int) -> None:
        """Seconds for which a partition's writes wait after a SIGKILL of its leader, and after a SIGTERM: the longest
        of all partitions, a value for each kill. The client is librdkafka, idempotent, with its own defaults."""
        topic = self.topic(PARTITIONS)
        with Pauses(self._cluster.address, topic, PARTITIONS) as pauses:
            for measure, end in (
                ("failover after SIGKILL (s)", self._cluster.kill),
                ("failover after SIGTERM (s)", self._cluster.stop),
            ):
                for _ in range(kills):
                    self.until_in_sync(topic, PARTITIONS)
                    time.sleep(CALM_S)
                    leader = self.leader(topic)
                    pauses.begin()
                    end(leader)
                    pauses.until_over(QUIET_S, LOOK_S)
                    self.note(measure, pauses.longest())
                    self._cluster.restart(leader)
        one(self._admin.delete_topics([topic]))


MEASURES: dict[str, Callable[[Measured, argparse.Namespace], None]] = {
    "throughput": lambda measured, asked: measured.throughput(asked.scale),
    "latency": lambda measured, asked: measured.latency(asked.scale),
    "failover": lambda measured, asked: measured.failover(asked.kills),
}


def run(asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Runs all measures on all clusters; returns the summary."""
    names: list[str] = asked.servers
    results: dict[str, Results] = {name: {} for name in names}
    for number in range(asked.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            sys.stderr.write(f"round {number + 1} of {asked.rounds}: {name}\n")
            with ExitStack() as stack:
                begun = time.monotonic()
                cluster = stack.enter_context(KINDS[name][0](folder / f"{name}-{number}"))
                measured = Measured(cluster, results[name])
                measured.topic(1)
                measured.note("start-up to the first topic (s)", time.monotonic() - begun)
                measured.note("memory idle (MiB)", measured.memory())
                # A Java process becomes faster as it runs.
                drive("produce", cluster.address, measured.topic(16), 16, 500_000, 100, 0)
                drive("latency", cluster.address, measured.topic(1), 1000, WARM_S)
                for measure in asked.measures:
                    MEASURES[measure](measured, asked)
    return summary(results, {name: text for name, (_, text) in KINDS.items()})


def main(arguments: list[str] | None = None) -> int:
    arguing = parser("peers-cluster", __doc__, KINDS, "of the number of events")
    arguing.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    arguing.add_argument("--kills", type=int, default=3, help="of leaders, and as many SIGTERMs, in each round")
    asked = arguing.parse_args(arguments)
    return compare(asked, build, lambda folder: run(asked, folder))


if __name__ == "__main__":
    sys.exit(main())
