"""Clusters of brokers as processes of their own, over a real ZooKeeper, for tests that kill them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from krappy.broker.topics.internal_topics import OFFSETS
from krappy.core.cluster.coordinators import partition_of
from krappy.wire.kafka import ApiKey
from tests.cluster.zookeeper import ZooKeeperServer, zookeepers
from tests.kafka.raw import Closed, Raw
from tests.process import LIFETIME, PATIENCE, BrokerProcess, Launch, forked, free_ports, looks, wait_until
from tests.zygote import INTERNAL_PARTITIONS

T = TypeVar("T")


class SharedProcesses(NamedTuple):
    """What the clusters of one test process share. Each cluster has its folder's name as its chroot. No test may stop
    the shared processes."""

    zookeeper: ZooKeeperServer
    launch: Launch


class KnownPartition(NamedTuple):
    leader: int  # -1: there is none
    epoch: int
    replicas: list[int]
    isrs: list[int]


class KnownTopic(NamedTuple):
    id: bytes
    partitions: dict[int, KnownPartition]


def _known(raw: Raw, name: str) -> KnownTopic | None:
    [found] = raw.ask(ApiKey.METADATA, {"topics": [{"name": name}], "allow_auto_topic_creation": False})["topics"]
    if found["error_code"]:
        return None
    rows = sorted(found["partitions"], key=lambda each: each["partition_index"])
    partitions = {
        each["partition_index"]: KnownPartition(
            each["leader_id"], each["leader_epoch"], each["replica_nodes"], each["isr_nodes"]
        )
        for each in rows
    }
    return KnownTopic(bytes(found["topic_id"]), partitions)


def make_alone(raw: Raw, broker: int) -> int:
    """Makes the topic "alone" with one partition, which has its only replica on this broker. Returns the error code."""
    assigned = [{"partition_index": 0, "broker_ids": [broker]}]
    topic = {"name": "alone", "num_partitions": -1, "replication_factor": -1, "assignments": assigned, "configs": []}
    [made] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 30_000}, 7)["topics"]
    return int(made["error_code"])


def start_registered(broker: BrokerProcess) -> None:
    """Starts a broker, and waits until it has registered, also if an earlier process of it had."""
    before = len(broker.events("registered")) if broker.log.exists() else 0
    broker.start()
    wait_until(lambda: len(broker.events("registered")) > before, "it is registered")


class ClusterProcesses:
    """A cluster of broker processes. `brokers`: by id, from 1. Each keeps its addresses when it is started again."""

    def __init__(
        self,
        folder: Path,
        zookeeper: ZooKeeperServer,
        count: int,
        launch: Any,
        lifetime: float = LIFETIME,
        **settings: Any,
    ) -> None:
        self.zookeeper = zookeeper
        self._admin: AdminClient | None = None
        self._paused: set[int] = set()
        self._kept: dict[int, list[Raw]] = {id: [] for id in range(1, count + 1)}
        ports = free_ports(3 * count)
        settings = {"transaction_state_log_num_partitions": INTERNAL_PARTITIONS, **settings}
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
        for each in self.brokers.values():
            each.lifetime = lifetime

    @property
    def kafka(self) -> str:
        """The value of bootstrap.servers for clients."""
        return ",".join(each.settings["listen_kafka"] for each in self.brokers.values())  # type: ignore[misc]

    @property
    def native(self) -> str:
        return ",".join(each.settings["listen_native"] for each in self.brokers.values())  # type: ignore[misc]

    @property
    def admin(self) -> AdminClient:
        """A new client. Waits first until each running broker knows a running controller, because librdkafka waits long
        for a controller that was killed."""
        for id in self.running:
            wait_until(partial(self.look, id, self._has_controller), f"broker {id} knows a controller")
        servers = [self.brokers[id].settings["listen_kafka"] for id in self.running]
        self._admin = AdminClient({"bootstrap.servers": ",".join(servers)})  # type: ignore[arg-type]
        return self._admin  # kept, because its requests end when it is freed

    def start(self) -> None:
        """Starts all brokers, and waits until they are registered and know each other."""
        for each in self.brokers.values():
            each.begin()
        for each in self.brokers.values():
            each.ready()
        for id in self.brokers:
            wait_until(lambda id=id: len(self.events(id, "registered")) > 0, f"broker {id} is registered")  # type: ignore[misc]
        self.until_known()

    def start_again(self, id: int) -> None:
        """Starts a killed broker again, and waits until it has registered again. Before that, other brokers may know it
        by its old session, and forget it when that session expires."""
        start_registered(self.brokers[id])
        self.until_known()

    @property
    def running(self) -> list[int]:
        """The ids of the brokers that run, and are not paused."""
        return [id for id, each in self.brokers.items() if id not in self._paused and each.running]

    @contextlib.contextmanager
    def paused(self, id: int) -> Iterator[None]:
        """Pauses the broker (SIGSTOP) in this block; its connections stay. It may be paused already."""
        os.kill(self.brokers[id].pid, signal.SIGSTOP)
        self._paused.add(id)
        try:
            yield
        finally:
            os.kill(self.brokers[id].pid, signal.SIGCONT)
            self._paused.discard(id)

    def until_known(self) -> None:
        """Waits until each running broker knows which brokers run."""
        for id in self.running:
            wait_until(partial(self.look, id, self._knows_who_runs), f"broker {id} knows who runs")

    def _knows_who_runs(self, raw: Raw) -> bool:
        return len(raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]) == len(self.running)

    def _has_controller(self, raw: Raw) -> bool:
        return raw.ask(ApiKey.METADATA, {"topics": []})["controller_id"] in self.running

    def asked(self, id: int) -> Raw:
        """A new connection to a broker."""
        return Raw(str(self.brokers[id].settings["listen_kafka"]))

    def look(self, id: int, ask: Callable[[Raw], T]) -> T:
        """What `ask` returns. It gets a connection to the broker that is kept for the next look, since making one costs
        twice as much CPU time as a look. It is called again if a kept connection has ended meanwhile."""
        while self._kept[id]:
            with contextlib.suppress(OSError, Closed, IndexError):  # another thread may have taken the last one
                return self._looked(id, self._kept[id].pop(), ask)
        return self._looked(id, self.asked(id), ask)

    def _looked(self, id: int, raw: Raw, ask: Callable[[Raw], T]) -> T:
        with contextlib.ExitStack() as failed:
            failed.enter_context(raw)
            told = ask(raw)
            failed.pop_all()
        self._kept[id].append(raw)
        return told

    def events(self, id: int, name: str) -> list[dict[str, Any]]:
        return self.brokers[id].events(name)

    def check_errors(self) -> None:
        """Checks that no broker has reported an error of its own."""
        for broker in self.brokers.values():
            assert not broker.events("internal_error"), broker.last_words()

    def topic(self, name: str) -> KnownTopic | None:
        """The topic as all running brokers know it now. None: it does not exist. Waits until the brokers agree, because
        one may hear of a change later than another."""
        for _ in looks(f"brokers agree about {name}"):
            with contextlib.suppress(OSError, Closed):  # a broker may be killed just now
                found = [self.look(id, partial(_known, name=name)) for id in self.running]
                if all(each == found[0] for each in found):
                    return found[0]
        raise AssertionError

    def partitions(self, topic: str) -> dict[int, KnownPartition]:
        """A topic's partitions, as all running brokers know them now. Waits until the topic exists."""
        for _ in looks(f"all brokers know {topic}"):
            if (found := self.topic(topic)) is not None:
                return found.partitions
        raise AssertionError

    def partitions_at(self, id: int, topic: str) -> dict[int, KnownPartition]:
        """A topic's partitions, as one broker knows them now. Other brokers may know newer states."""
        found = self.look(id, partial(_known, name=topic))
        return {} if found is None else found.partitions

    def states(self, topic: str) -> list[dict[str, Any]]:
        """The states of a topic's partitions in ZooKeeper, which are newer than what any broker knows."""
        kazoo = KazooClient(hosts=self.brokers[1].settings["zookeeper_connect"])
        kazoo.start(PATIENCE)
        try:
            path = f"/brokers/topics/{topic}/partitions"
            return [json.loads(kazoo.get(f"{path}/{index}/state")[0]) for index in self.partitions(topic)]
        finally:
            kazoo.stop()
            kazoo.close()

    def coordinator(self, group: str) -> int:
        """The id of the broker that coordinates a group. Waits until there is one."""
        [asked] = self.admin.describe_consumer_groups([group], request_timeout=30).values()
        with contextlib.suppress(KafkaException):  # the group need not exist; the request makes the coordinators' topic
            asked.result(60)
        for _ in looks(f"somebody coordinates the group {group}"):
            found = self.partitions(OFFSETS)
            if (leader := int(found[partition_of(group, len(found))].leader)) in self.brokers:
                return leader
        raise AssertionError

    def until_in_sync(self, topic: str) -> None:
        wait_until(
            lambda: all(sorted(each.isrs) == sorted(each.replicas) for each in self.partitions(topic).values()),
            f"all replicas of {topic} are in sync",
        )

    def until_led(self, topic: str) -> None:
        """Waits until each partition of a new topic has a leader that takes requests: a broker may begin to lead a
        moment after all know that it is the leader."""
        for index in self.partitions(topic):
            wait_until(partial(self._is_led, topic, index), f"{topic}-{index} is led")

    def _is_led(self, topic: str, index: int) -> bool:
        leader = self.partitions(topic)[index].leader
        return leader in self.running and self.look(leader, lambda raw: raw.fetch(topic, 0, index))["error_code"] == 0

    def spread(self, topic: str) -> None:
        """Lets the first replica of each partition lead, so that each broker leads partitions of the topic again. The
        first replicas must be in sync."""
        partitions = self.partitions(topic)
        body = {
            "election_type": 0,
            "topic_partitions": [{"topic": topic, "partitions": list(partitions)}],
            "timeout_ms": 30_000,
        }
        assert {each.replicas[0] for each in partitions.values()} == set(self.brokers)
        with self.asked(1) as raw:
            raw.ask(ApiKey.ELECT_LEADERS, body)
        wait_until(
            lambda: all(each.leader == each.replicas[0] for each in self.partitions(topic).values()),
            f"the preferred replicas of {topic} lead",
        )

    def kill(self) -> None:
        for each in self.brokers.values():
            each.kill()
        for kept in self._kept.values():
            while kept:
                kept.pop().close()


@contextlib.contextmanager
def brokers(
    folder: Path, count: int = 3, *, shared: SharedProcesses | None = None, **settings: Any
) -> Iterator[ClusterProcesses]:
    """A running cluster. `shared` None: it has a ZooKeeper of its own. Raises Missing if ZooKeeper can't run here."""
    with contextlib.ExitStack() as own:
        if shared is None:
            [zookeeper] = own.enter_context(zookeepers(folder / "zookeeper"))
            shared = SharedProcesses(zookeeper, forked)
        cluster = ClusterProcesses(folder, shared.zookeeper, count, shared.launch, **settings)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()
