"""Which replicas come into an ISR, with real brokers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.replication.isr_keeper import FEW
from tests.clients.proxy import Proxy, proxy
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.cluster.cut_off import cut_off
from tests.cluster.test_cluster import leaders, make_topic
from tests.kafka.raw import Raw
from tests.process import free_ports, wait_until


class LinkedProcesses(ClusterProcesses):
    """A cluster whose brokers reach each other through proxies."""

    def __init__(self, folder: Path, shared: SharedProcesses, stack: ExitStack) -> None:
        super().__init__(folder, shared.zookeeper, 3, shared.launch)
        self._clients = {id: str(each.settings["listen_kafka"]) for id, each in self.brokers.items()}
        self.ways: list[Proxy] = []
        for (id, broker), port in zip(self.brokers.items(), free_ports(3), strict=True):
            own = f"127.0.0.1:{port}"
            way = stack.enter_context(proxy(own))
            self.ways.append(way)
            broker.settings["listen_kafka"] = f"OWN://{own},CLIENTS://{self._clients[id]}"
            broker.settings["listener_security_protocol_map"] = "OWN:PLAINTEXT,CLIENTS:PLAINTEXT"
            broker.settings["advertised_listeners"] = f"OWN://{way.address}"

    def asked(self, id: int) -> Raw:
        return Raw(self._clients[id])


def test_connections_that_are_dead_cost_no_follower_its_place(
    tmp_path: Path, shared_processes: SharedProcesses
) -> None:
    """As when a firewall between brokers has forgotten their connections. New ones work."""
    with ExitStack() as stack:
        cluster = LinkedProcesses(tmp_path, shared_processes, stack)
        stack.callback(cluster.kill)
        cluster.start()
        with blocking.connect(cluster.native, timeout=60) as client:
            client.create_topic("t", 3)
            cluster.until_in_sync("t")
            with client.producer("t") as producer:

                def send_to_all() -> None:
                    for sent in [producer.send(b"v", partition=index) for index in range(3)]:
                        sent.result(60)

                send_to_all()  # so each follower has a connection that has brought it something
                before = [len(cluster.events(id, "isr_changed")) for id in cluster.brokers]
                for way in cluster.ways:
                    way.freeze()
                send_to_all()
        assert [len(cluster.events(id, "isr_changed")) for id in cluster.brokers] == before
        cluster.check_errors()


def times_back(cluster: ClusterProcesses, follower: int) -> int:
    """How often a leader took this broker into an ISR."""
    return sum(
        follower in each["came"]
        for id in cluster.brokers
        if id != follower
        for each in cluster.events(id, "isr_changed")
    )


def test_a_follower_that_only_zookeeper_does_not_hear_of_stays_out_of_the_isr(cluster: ClusterProcesses) -> None:
    """The follower goes on fetching, and is registered until its session ends. The controller takes it out of the ISR
    before that, and leaders must not put it back several times a second."""
    make_topic(cluster, "t")
    with cut_off(cluster, 3) as cut:
        cluster.until_in_sync("t")
        [first, *_] = [index for index, leader in enumerate(leaders(cluster, "t")) if leader != 3]

        def is_in() -> bool:
            # Broker 1 is asked, because broker 3 hears of no changes.
            return 3 in cluster.partitions_at(1, "t")[first].isrs

        before = times_back(cluster, 3)
        with cut():
            wait_until(lambda: not is_in(), "the controller has taken the broker out")
            end = time.monotonic() + 2  # the session of broker 3 lasts at least so long
            while time.monotonic() < end:
                assert not is_in()
            assert times_back(cluster, 3) == before
        cluster.until_in_sync("t")
        assert times_back(cluster, 3) > before


def test_of_very_many_partitions_too_a_dead_follower_leaves_and_comes_back(cluster: ClusterProcesses) -> None:
    """The leaders look at most of them once a second."""
    count = 2 * FEW
    [made] = cluster.admin.create_topics([NewTopic("many", count, 3)]).values()
    made.result(60)
    cluster.until_in_sync("many")
    cluster.brokers[3].kill()
    lost: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all"})
    for index in range(count):
        producer.produce("many", b"v", partition=index, on_delivery=lambda error, _: lost.append(error) if error else 0)
    assert producer.flush(60) == 0
    assert not lost
    assert all(3 not in each.isrs for each in cluster.partitions("many").values())
    cluster.start_again(3)
    cluster.until_in_sync("many")
