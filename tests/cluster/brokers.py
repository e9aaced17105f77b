"""Clusters of brokers as processes of their own, over a real ZooKeeper, for tests that kill them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, PartitionMetadata

from krappy.broker.topics.internal_topics import OFFSETS
from krappy.core.cluster.coordinators import partition_of
from krappy.wire.kafka import ApiKey
from tests.cluster.zookeeper import ZooKeeperServer, zookeepers
from tests.kafka.raw import Raw
from tests.process import PATIENCE, BrokerProcess, Launcher, free_ports, wait_until


class SharedProcesses(NamedTuple):
    """What clusters of one test process share: their folders' names are their chroots. No test may stop them."""

    zookeeper: ZooKeeperServer
    launch: Launcher


class ClusterProcesses:
    """`brokers`: by id, from 1. Each keeps its addresses when it is started again."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperServer, count: int, launch: Any, **settings: Any) -> None:
        self.zookeeper = zookeeper
        ports = free_ports(3 * count)
        chroot = f"127.0.0.1:{zookeeper.port}/{folder.name}"
        self.brokers = {
            id: BrokerProcess(
                folder / f"broker-{id}",
                launch=launch,
                broker_id=id,
                zookeeper_connect=chroot,
                listen_native=f"127.0.0.1:{ports[3 * id - 3]}",
                listen_kafka=f"127.0.0.1:{ports[3 * id - 2]}",
                listen_http=f"127.0.0.1:{ports[3 * id - 1]}",
                **settings,
            )
            for id in range(1, count + 1)
        }

    @property
    def kafka(self) -> str:
        """bootstrap.servers."""
        return ",".join(each.settings["listen_kafka"] for each in self.brokers.values())  # type: ignore[misc]

    @property
    def native(self) -> str:
        return ",".join(each.settings["listen_native"] for each in self.brokers.values())  # type: ignore[misc]

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka})

    def start(self) -> None:
        """Returns once all brokers are registered, and know that of each other."""
        for each in self.brokers.values():
            each.begin()
        for each in self.brokers.values():
            each.ready()
        for id in self.brokers:
            wait_until(lambda id=id: len(self.events(id, "registered")) > 0, f"broker {id} is registered")  # type: ignore[misc]
        for id, each in self.brokers.items():
            with Raw(str(each.settings["listen_kafka"])) as raw:
                wait_until(partial(self._knows_all, raw), f"broker {id} knows all others")

    def _knows_all(self, raw: Raw) -> bool:
        return len(raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]) == len(self.brokers)

    def events(self, id: int, name: str) -> list[dict[str, Any]]:
        return self.brokers[id].events(name)

    def partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        """A topic's partitions, each with leader, replicas and isrs, as Kafka's Metadata tells. librdkafka asks one
        broker; if that is killed meanwhile, it waits for it."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                found: dict[int, PartitionMetadata] = self.admin.list_topics(topic, 3).topics[topic].partitions
                return found
            except KafkaException:
                assert time.monotonic() < end, "no broker answers"

    def coordinator(self, group: str) -> int:
        """The id of the broker that coordinates a group, once there is one."""
        [asked] = self.admin.describe_consumer_groups([group], request_timeout=30).values()
        with contextlib.suppress(KafkaException):  # it need not exist, but its coordinator does from now on
            asked.result(60)
        end = time.monotonic() + PATIENCE
        while True:
            found = self.partitions(OFFSETS)
            if (leader := int(found[partition_of(group, len(found))].leader)) in self.brokers:
                return leader
            assert time.monotonic() < end, f"nobody coordinates the group {group}"
            time.sleep(0.05)

    def until_in_sync(self, topic: str) -> None:
        wait_until(
            lambda: all(sorted(each.isrs) == sorted(each.replicas) for each in self.partitions(topic).values()),
            f"all replicas of {topic} are in sync: {self.partitions(topic)}",
        )

    def kill(self) -> None:
        for each in self.brokers.values():
            each.kill()


@contextlib.contextmanager
def brokers(
    folder: Path, count: int = 3, *, shared: SharedProcesses | None = None, **settings: Any
) -> Iterator[ClusterProcesses]:
    """A running cluster. `shared`: None: it has a ZooKeeper of its own. Raises Missing when that can't run here."""
    with contextlib.ExitStack() as own:
        if shared is None:
            [zookeeper] = own.enter_context(zookeepers(folder / "zookeeper"))
            shared = SharedProcesses(zookeeper, own.enter_context(Launcher()))
        cluster = ClusterProcesses(folder, shared.zookeeper, count, shared.launch, **settings)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()
