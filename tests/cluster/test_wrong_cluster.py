"""Brokers do not start, and lose nothing, if their ZooKeeper was emptied, or if their id or their path in ZooKeeper is
wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from krappy import blocking
from krappy.errors import RequestTimeout, UnknownGroup
from krappy.store.local_replicas import LocalReplicas
from krappy.store.meta import Meta
from krappy.types import TopicPartition as KrappyPartition
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.stepping import stepping, stopping_at
from tests.cluster.test_cluster import PARTITIONS, Writer, read, until_acked, written
from tests.cluster.zookeeper import Missing, ZooKeeperServer
from tests.process import PATIENCE, BrokerProcess, wait_until


def test_brokers_of_another_cluster_do_not_start(tmp_path: Path) -> None:
    try:
        with brokers(tmp_path) as cluster:
            writer = written(cluster, "t")
            for each in cluster.brokers.values():
                assert each.stop() == 0
            right = cluster.brokers[1].settings["zookeeper_connect"]
            for each in cluster.brokers.values():  # each broker has a wrong path
                each.settings["zookeeper_connect"] = f"{right}-wrong"
                each.begin()
                assert each.ended() != 0
                assert "Nothing is changed" in each.last_words()
                each.settings["zookeeper_connect"] = right
            data = cluster.zookeeper.folder / "version-2"
            cluster.zookeeper.kill()
            data.rename(tmp_path / "kept")
            cluster.zookeeper.start()
            cluster.zookeeper.wait()
            for each in cluster.brokers.values():
                each.begin()
                assert each.ended() != 0
                assert "Nothing is changed" in each.last_words()
            cluster.zookeeper.kill()
            shutil.rmtree(data)
            (tmp_path / "kept").rename(data)
            cluster.zookeeper.start()
            cluster.zookeeper.wait()
            for each in cluster.brokers.values():
                each.begin()
            for each in cluster.brokers.values():
                each.ready()
            with Writer(cluster, "t") as more:
                until_acked(more, 600)
            cluster.until_in_sync("t")
            assert not more.failed
            for each in cluster.brokers.values():
                assert each.stop() == 0
            for partition in range(PARTITIONS):
                for each in cluster.brokers.values():
                    found = read(each.data, "t", partition)
                    for number, offset in (*writer.acked[partition], *more.acked[partition]):
                        assert found[offset] == str(number).encode()
    except Missing as reason:
        pytest.skip(str(reason))


def test_a_folder_is_taken_by_its_own_broker_only(cluster: ClusterProcesses) -> None:
    """Another broker would remove the folder's replicas. A broker without a cluster would know none of its topics, and
    make others."""
    writer = written(cluster, "ids")
    for each in cluster.brokers.values():
        each.kill()
    third = cluster.brokers[3]
    third.settings["broker_id"] = 4
    third.begin()
    assert third.ended() != 0
    assert "the folder of broker 3, and this is broker 4" in third.last_words()
    third.settings["broker_id"] = 3
    zookeeper = third.settings.pop("zookeeper_connect")
    third.begin()
    assert third.ended() != 0
    assert "zookeeper_connect is missing" in third.last_words()
    third.settings["zookeeper_connect"] = zookeeper
    third.begin()
    third.ready()
    for id in (1, 2):
        cluster.brokers[id].begin()
        cluster.brokers[id].ready()
    cluster.until_in_sync("ids")
    for each in cluster.brokers.values():
        assert each.stop() == 0
    for partition in range(PARTITIONS):
        for each in cluster.brokers.values():
            found = read(each.data, "ids", partition)
            assert {offset: found.get(offset) for _, offset in writer.acked[partition]} == {
                offset: str(number).encode() for number, offset in writer.acked[partition]
            }


@pytest.fixture
def broker(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes a broker that does not run yet: broker(id, name of its folder, suffix of its cluster's path)."""
    with ExitStack() as stack:

        def made(id: int, name: str, path: str = "") -> BrokerProcess:
            where = f"127.0.0.1:{shared_zookeeper.port}/{tmp_path.name}{path}"
            broker = BrokerProcess(tmp_path / name, launch=stepping, broker_id=id, zookeeper_connect=where)
            stack.callback(broker.kill)
            return broker

        yield made


def is_refused(broker: BrokerProcess, why: str) -> None:
    broker.begin()
    assert broker.ended() != 0
    assert why in broker.last_words()
    assert "Nothing is changed" in broker.last_words()


def is_registered(broker: BrokerProcess) -> blocking.Client:
    broker.ready()
    wait_until(lambda: bool(broker.events("registered")), "it is registered")
    return blocking.connect(broker.address, timeout=PATIENCE)


def was_alone(folder: Path, *topics: str) -> None:
    """Fills a folder by a broker that is alone. Each topic has one event."""
    with BrokerProcess(folder) as broker, blocking.connect(broker.address, timeout=PATIENCE) as client:
        for name in topics:
            client.create_topic(name, 1)
            with client.producer(name) as producer:
                producer.send(name.encode(), key=b"k").result(PATIENCE)
        assert broker.stop() == 0


def has(client: blocking.Client, *topics: str) -> None:
    """Checks that the topics have what `was_alone` has written."""
    found = [client.table(name).get(b"k") for name in topics]
    assert [each and each.value for each in found] == [name.encode() for name in topics]


def test_an_empty_folder_is_bound_to_nothing_while_its_id_is_in_use(broker: Callable[..., BrokerProcess]) -> None:
    """The broker with the empty folder goes on once the other broker has ended."""
    one, new = broker(1, "one"), broker(1, "new")
    one.begin()
    is_registered(one).close()
    new.begin()
    wait_until(lambda: len(new.events("broker_id_in_use")) == 1, "it waits")
    new.kill()
    with closing(Meta(new.data / "meta")) as meta:
        assert LocalReplicas(meta).broker is None
    new.begin()
    wait_until(lambda: len(new.events("broker_id_in_use")) == 2, "it waits")
    one.stop()
    is_registered(new).close()


def test_a_folder_with_topics_is_no_broker_that_another_folder_was(broker: Callable[..., BrokerProcess]) -> None:
    """Otherwise all its events would count as lost with that other folder."""
    was_alone((full := broker(1, "full")).data, "mine")
    one = broker(1, "one")
    one.begin()
    with is_registered(one) as client:
        is_refused(full, "another folder is, or was, broker 1")
        assert not client.topics()
        one.stop()
    is_refused(full, "another folder is, or was, broker 1")
    full.settings["broker_id"] = 2
    full.begin()
    with is_registered(full) as client:
        has(client, "mine")


def use_groups(broker: BrokerProcess, client: blocking.Client, topic: str, group: str) -> None:
    """A native group acknowledges the topic's event, a group of Kafka's commits a position behind it, and a transaction
    and a staged job are committed."""
    with client.consumer(topic, group=f"native-{group}") as member:
        [event] = member.poll(PATIENCE)
        member.ack(event, wait=True)
    at = TopicPartition(topic, 0, 1)
    member = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    member.commit(offsets=[at], asynchronous=False)
    member.close()
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": group})
    producer.init_transactions(PATIENCE)
    with client.stage(topic, job=group, task=0, attempt=1) as task:
        task.send(b"staged", key=b"s")
        token = task.seal()
    assert client.commit_staged(group, [token]).records == 1


def committed(broker: BrokerProcess, topic: str, group: str) -> list[int]:
    """What a group of Kafka's has committed; nothing if the broker does not coordinate it yet."""
    asked = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    try:
        return [each.offset for each in asked.committed([TopicPartition(topic, 0)], PATIENCE)]
    except KafkaException:
        return []
    finally:
        asked.close()


def check_groups(broker: BrokerProcess, client: blocking.Client, topic: str, group: str) -> None:
    """Checks what `use_groups` has left."""
    assert client.positions(f"native-{group}") == {KrappyPartition(topic, 0): 1}
    wait_until(lambda: committed(broker, topic, group) == [1], "the group of Kafka's is there")
    assert client.commit_staged(group, []).records == 1


@pytest.mark.parametrize("what", ["groups", "native groups", "transactional ids", "staged jobs"])
def test_a_folder_with_groups_is_refused_where_others_coordinate_them(
    broker: Callable[..., BrokerProcess], what: str
) -> None:
    """Its groups would begin anew, its jobs would be published again, and nobody would end its transactions. So it is,
    too, if brokers and clients of a new cluster come before the one whose folder was restored."""
    joins, other = broker(1, "joins"), broker(2, "other")
    was_alone(joins.data, "mine")
    with BrokerProcess(joins.data) as alone, blocking.connect(alone.address, timeout=PATIENCE) as client:
        use_groups(alone, client, "mine", "g")
        assert alone.stop() == 0
    other.begin()
    with is_registered(other) as client:

        def is_used() -> bool:
            """Whether a client has used what the other broker coordinates."""
            with suppress(KafkaException, RequestTimeout):  # the internal topic may still be in the making
                match what:
                    case "groups":
                        return committed(other, "mine", "g") == [-1001]
                    case "native groups":
                        with suppress(UnknownGroup):
                            client.group("native-g")
                    case "transactional ids":
                        settings = {"bootstrap.servers": other.kafka, "transactional.id": "g"}
                        Producer(settings).init_transactions(PATIENCE)
                    case _:
                        client.abort_staged("g")
                return True
            return False

        wait_until(is_used, f"others coordinate {what}")
        is_refused(joins, f"has {what}")
        assert not client.topics()
    other.stop()
    joins.settings["zookeeper_connect"] = f"{joins.settings['zookeeper_connect']}-own"
    with stopping_at(joins, "gives topic"):  # what coordinates its groups is there already, and is its own
        joins.begin()
    joins.begin()
    with is_registered(joins) as client:
        has(client, "mine")
        check_groups(joins, client, "mine", "g")


def test_a_join_goes_on_only_where_it_began(broker: Callable[..., BrokerProcess]) -> None:
    """The broker was killed when it had given the cluster one of its two topics. Meanwhile the cluster has got a topic
    with the name of the other one."""
    was_alone((joins := broker(1, "joins")).data, "a", "b")
    with stopping_at(joins, "gives topic", 2):
        joins.begin()
    right = joins.settings["zookeeper_connect"]
    joins.settings["zookeeper_connect"] = f"{right}-wrong"
    is_refused(joins, "ZooKeeper knows of none at this path")
    wrong, other = broker(2, "wrong", "-wrong"), broker(2, "other")
    wrong.begin()
    is_registered(wrong).close()
    is_refused(joins, "has begun to join the cluster")
    wrong.stop()
    joins.settings["zookeeper_connect"] = right
    other.begin()
    with is_registered(other) as client:
        client.create_topic("b", 1)
        is_refused(joins, "the cluster has another one of that name")
        client.delete_topic("b")
        joins.begin()
        with is_registered(joins) as joined:
            has(joined, "a", "b")
