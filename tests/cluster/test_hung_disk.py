"""The disk of a broker hangs at one partition. All others go on, whatever changes in the cluster meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from krappy import blocking
from krappy.broker.topics.internal_topics import OFFSETS, SHARES, TRANSACTIONS
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import KrappyError
from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, KnownPartition, SharedProcesses, brokers, make_alone
from tests.cluster.failing_disk import failing, failing_at, hanging_at, stalling_at
from tests.cluster.scattered_transactions import ScatteredProducer, coordinator_of
from tests.cluster.test_groups_kept import commit, offsets
from tests.cluster.zookeeper import ZooKeeperServer
from tests.kafka.raw import Raw, fetch, produce
from tests.process import wait_until

BROKER = 4  # as the type of a resource
LONG_S = 60.0
PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    """A cluster in which no follower leaves the ISR because it lags."""
    shared = SharedProcesses(shared_zookeeper, failing)
    with brokers(tmp_path, shared=shared, replica_lag_time_max_ms=600_000, retention_check_ms=200) as made:
        yield made
        made.check_errors()


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.native, timeout=LONG_S) as made:
        made.create_topic("hung", 1)
        made.create_topic("t", PARTITIONS)
        cluster.until_in_sync("hung")
        cluster.until_in_sync("t")
        cluster.spread("t")
        yield made


@contextmanager
def sent(cluster: ClusterProcesses, topic: str = "hung", partitions: int = 1) -> Iterator[None]:
    """In this block, an event for each partition of the topic that hangs waits, or has failed."""

    def send() -> None:
        with blocking.connect(cluster.native, timeout=LONG_S) as client, client.producer(topic) as producer:
            for each in [producer.send(b"0", partition=index) for index in range(partitions)]:
                try:
                    each.result(2 * LONG_S)
                except KrappyError as error:
                    errors.append(error)

    errors: list[KrappyError] = []
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join(3 * LONG_S)


def write_everywhere(client: blocking.Client) -> None:
    with client.producer("t", timeout=LONG_S) as producer:
        for partition in range(PARTITIONS):
            producer.send(b"0", partition=partition).result(LONG_S)


def test_a_follower_whose_disk_hangs_at_one_partition(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """It copies its leader's other partitions, and takes part in elections: one whose leader changes has to wait for
    its disk, others don't."""
    leader = cluster.partitions("hung")[0].leader
    hung, other = leader % 3 + 1, (leader + 1) % 3 + 1
    with sent(cluster), hanging_at(cluster.brokers[hung], "/hung-0/"):
        write_everywhere(client)
        assert cluster.brokers[leader].stop() == 0
        cluster.start_again(leader)
        cluster.until_in_sync("t")  # which the hung broker has to know of, where it leads
        cluster.brokers[other].kill()
        write_everywhere(client)


def test_a_deleted_topic_hangs_at_its_leader(cluster: ClusterProcesses, client: blocking.Client) -> None:
    leader = cluster.partitions("hung")[0].leader
    with sent(cluster), hanging_at(cluster.brokers[leader], "/hung-0/"):
        write_everywhere(client)
        client.delete_topic("hung")
        cluster.brokers[leader % 3 + 1].kill()
        write_everywhere(client)
    client.create_topic("hung", 1)
    with client.producer("hung") as producer:
        assert producer.send(b"1").result(LONG_S).offset == 0


def test_a_deleted_topic_hangs_at_a_coordinator(cluster: ClusterProcesses) -> None:
    """Meanwhile its name is another topic's, in which the group has no position."""
    at = cluster.coordinator("g")
    cluster.until_in_sync(OFFSETS)
    other = at % 3 + 1
    with cluster.asked(at) as raw, cluster.asked(at) as waiting, cluster.asked(other) as asked:
        wait_until(lambda: make_alone(asked, at) in (Code.NONE, Code.TOPIC_ALREADY_EXISTS), "it is made")
        cluster.until_led("alone")
        wait_until(lambda: commit(raw, "g", 0, 7, "alone") == Code.NONE, "it is committed")
        with hanging_at(cluster.brokers[at], "/alone-0/"):
            waiting.send(ApiKey.PRODUCE, produce("alone", batch.encode([None], [b"x"], timestamps=1)), 12)
            wait_until(lambda: size_of(raw, "alone") > 0, "it is written, and the disk hangs")
            asked.ask(ApiKey.DELETE_TOPICS, {"topics": [{"name": "alone"}], "timeout_ms": 30_000})
            assert make_alone(asked, other) == Code.NONE
            wait_until(lambda: offsets(raw, "g") == {}, "the group has no position there")
            assert not cluster.partitions_at(at, "alone"), "the disk hangs still"


def test_another_broker_s_positions_in_a_topic_that_was_made_anew_stay(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """Native groups'. A coordinator takes over while it has still to remove the deleted topic of that name."""
    read(client, "t", "first", 0)  # makes the topic of the groups
    cluster.until_in_sync(SHARES)
    states = cluster.partitions(SHARES)
    names = (f"g{number}" for number in range(1000))
    group = next(name for name in names if is_first(states[partition_of(name, len(states))]))
    before, at, other = states[partition_of(group, len(states))].replicas
    there = str(cluster.brokers[other].settings["listen_native"])
    with cluster.asked(at) as raw, cluster.asked(at) as waiting, cluster.asked(other) as asked:
        assert make_alone(asked, at) == Code.NONE
        cluster.until_led("alone")
        with hanging_at(cluster.brokers[at], "/alone-0/"):
            waiting.send(ApiKey.PRODUCE, produce("alone", batch.encode([None], [b"x"], timestamps=1)), 12)
            wait_until(lambda: size_of(raw, "alone") > 0, "it is written, and the disk hangs")
            asked.ask(ApiKey.DELETE_TOPICS, {"topics": [{"name": "alone"}], "timeout_ms": 30_000})
            assert make_alone(asked, other) == Code.NONE
            with blocking.connect(there, timeout=LONG_S) as beside:
                with beside.producer("alone") as producer:
                    for number in range(6):
                        producer.send(b"%d" % number).result(LONG_S)
                assert read(beside, "alone", group, 3) == [0, 1, 2]
            cluster.brokers[before].kill()
            wait_until(lambda: cluster.partitions(SHARES)[partition_of(group, len(states))].leader == at, "it leads")
            with blocking.connect(cluster.native, timeout=LONG_S) as others:
                read(others, "t", group, 0)  # so it has loaded the group
            assert not cluster.partitions_at(at, "alone"), "the disk hangs still"
        wait_until(lambda: bool(cluster.partitions_at(at, "alone")), "the deleted topic is removed there")
        with blocking.connect(cluster.native, timeout=LONG_S) as others:
            assert read(others, "alone", group, 3) == [3, 4, 5]


def is_first(partition: KnownPartition) -> bool:
    """Whether it is led by the first of its replicas. Then the second one is next."""
    return partition.leader == partition.replicas[0]


def read(client: blocking.Client, topic: str, group: str, most: int) -> list[int]:
    """Reads and acknowledges so many events. Gives their offsets."""
    taken: list[int] = []
    with client.consumer(topic, group=group) as consumer:
        while len(taken) < most:
            for event in consumer.poll(LONG_S)[: most - len(taken)]:
                consumer.ack(event)
                taken.append(event.offset)
    return taken


def size_of(raw: Raw, topic: str) -> int:
    """Bytes of its first partition."""
    asked = {"topics": [{"topic": topic, "partitions": [0]}]}
    [found] = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, asked)["results"]
    return int(found["topics"][0]["partitions"][0]["partition_size"])


def of_leader(cluster: ClusterProcesses, broker: int) -> Iterator[str]:
    """Transactional ids, each of another partition of the coordinators' topic that this broker leads."""
    states = cluster.partitions(TRANSACTIONS)
    names = {partition_of(name, len(states)): name for name in map(str, range(1000))}
    return (name for index, name in sorted(names.items()) if states[index].leader == broker)


def test_transactions_time_out_while_the_disk_of_another_hangs(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    ScatteredProducer(cluster, "first").init()
    cluster.until_in_sync(TRANSACTIONS)
    coordinator = coordinator_of(cluster, "first")
    hung, other = (ScatteredProducer(cluster, name).init(1000) for name in islice(of_leader(cluster, coordinator), 2))
    partition = partition_of(hung.name, len(cluster.partitions(TRANSACTIONS)))
    assert hung.add(("t", 0)) == Code.NONE
    with hanging_at(cluster.brokers[coordinator], f"/{TRANSACTIONS}-{partition}/"):
        wait_until(lambda: bool(timed_out(cluster, coordinator, hung.name)), "the first has timed out")
        assert other.add(("t", 1)) == Code.NONE
        wait_until(lambda: bool(timed_out(cluster, coordinator, other.name)), "the other has timed out")


def timed_out(cluster: ClusterProcesses, broker: int, name: str) -> list[dict[str, object]]:
    events = cluster.events(broker, "transaction_timed_out")
    return [each for each in events if each["transactional_id"] == name]


def test_transactions_end_while_the_disk_hangs_at_a_partition_of_another(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    ScatteredProducer(cluster, "first").init()
    cluster.until_in_sync(TRANSACTIONS)
    leader = cluster.partitions("hung")[0].leader
    coordinator = leader % 3 + 1
    index = next(index for index, each in cluster.partitions("t").items() if each.leader == leader)
    hung, other = (ScatteredProducer(cluster, name).init() for name in islice(of_leader(cluster, coordinator), 2))
    with hanging_at(cluster.brokers[leader], "/hung-0/"):
        assert hung.add(("hung", 0)) == Code.NONE
        assert hung.end(commit=True) == Code.NONE  # it is decided
        for _ in range(20):
            assert other.add(("t", index)) == Code.NONE
            assert other.end(commit=True) == Code.NONE
    waited = {each["transactional_id"] for each in cluster.events(coordinator, "transaction_waits")}
    assert waited == {hung.name}
    assert hung.add(("t", index)) == Code.NONE  # once the one before is completed


@contextmanager
def reading(cluster: ClusterProcesses, leader: int) -> Iterator[None]:
    """In this block, 20 clients read the topic that hangs, and one looks for an event by its time."""
    with ExitStack() as stack:
        for _ in range(20):
            body = fetch([("hung", 0, 0)], partition_max_bytes=1000) | {"max_bytes": 1000}
            stack.enter_context(cluster.asked(leader)).send(ApiKey.FETCH, body, 12)
        stack.enter_context(cluster.asked(leader)).send(ApiKey.LIST_OFFSETS, search("hung", 0), 5)
        yield


def search(topic: str, index: int) -> dict[str, Any]:
    """Asks for an event by its time."""
    partition = {"partition_index": index, "timestamp": 1, "current_leader_epoch": -1}
    return {"topics": [{"name": topic, "partitions": [partition]}]}


def test_searches_of_several_partitions_hang(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The same user's search of another partition ends."""
    client.create_topic("hung-too", PARTITIONS)
    cluster.until_in_sync("hung-too")
    cluster.spread("hung-too")
    for topic, partitions in (("hung-too", PARTITIONS), ("t", PARTITIONS)):
        with client.producer(topic) as producer:
            for index in range(partitions):
                producer.send(b"0", partition=index).result(LONG_S)

    def led(topic: str) -> list[int]:
        return [index for index, each in cluster.partitions(topic).items() if each.leader == 1]

    with stalling_at(cluster.brokers[1], "/hung-too-"), ExitStack() as stack:
        for index in led("hung-too") * 8:
            stack.enter_context(cluster.asked(1)).send(ApiKey.LIST_OFFSETS, search("hung-too", index), 5)
        with cluster.asked(1) as raw:
            (topic,) = raw.ask(ApiKey.LIST_OFFSETS, search("t", led("t")[0]), 5)["topics"]
    assert [(each["error_code"], each["offset"]) for each in topic["partitions"]] == [(0, 0)]


def test_reads_of_one_partition_hang(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The same disk serves all others meanwhile, however many clients read that partition. Large events are written and
    opened in threads."""
    with client.producer("hung") as producer:
        producer.send(b"0").result(LONG_S)
    leader = cluster.partitions("hung")[0].leader
    index = next(index for index, each in cluster.partitions("t").items() if each.leader == leader)
    value = os.urandom(500_000)
    with stalling_at(cluster.brokers[leader], "/hung-0/"), reading(cluster, leader):
        with client.producer("t", timeout=LONG_S, compression="zstd") as producer:
            for key in range(5):
                producer.send(value, key=b"%d" % key, partition=index).result(LONG_S)
        write_everywhere(client)


def test_what_a_stopping_broker_leads_is_handed_over(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """Also while its disk hangs at a partition that it leads. It leaves the ISRs before it ends its registration, so
    nobody waits for it."""
    leader = cluster.partitions("hung")[0].leader
    other = leader % 3 + 1

    def gone() -> bool:
        with cluster.asked(other) as raw:
            return leader not in {each["node_id"] for each in raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]}

    with sent(cluster), hanging_at(cluster.brokers[leader], "/hung-0/"):
        write_everywhere(client)
        cluster.brokers[leader].terminate()
        wait_until(gone, "its registration has ended")
        assert all(leader not in each.isrs for each in cluster.partitions_at(other, "t").values())
        write_everywhere(client)
    cluster.brokers[leader].ended()


def test_a_broker_that_stops_does_not_wait_for_a_pulse_that_hangs(cluster: ClusterProcesses) -> None:
    broker = cluster.brokers[1]
    pulse = broker.data / "pulse"
    with hanging_at(broker, "/pulse"):
        before = pulse.read_bytes()
        wait_until(lambda: pulse.read_bytes() != before, "the next pulse is written, and the disk hangs")
        assert broker.stop() == 0


def test_a_log_can_not_be_opened_anew_while_another_fails(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path
) -> None:
    leader = cluster.partitions("hung")[0].leader
    index = next(index for index, each in cluster.partitions("t").items() if each.leader == leader)
    broker = cluster.brokers[leader]
    with failing_at(broker, "/hung-0/"), client.producer("hung", timeout=LONG_S) as producer:
        producer.send(b"0").result(LONG_S)
        wait_until(lambda: cluster.partitions("hung")[0].leader != leader, "another broker leads")
    with hanging_at(broker, "/hung-0/"):
        broker.data.rename(tmp_path / "away")
        wait_until(lambda: bool(broker.events("data_folder_away")), "the broker has seen that its folder is away")
        (tmp_path / "away").rename(broker.data)  # once it is back, failed logs are tried at once
        cluster.until_in_sync("t")
        cluster.spread("t")
        with failing_at(broker, f"/t-{index}/"), client.producer("t", timeout=LONG_S) as producer:
            producer.send(b"0", partition=index).result(LONG_S)
            wait_until(lambda: cluster.partitions("t")[index].leader != leader, "another broker leads")


def test_the_disk_hangs_at_many_partitions(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """More than there are threads that wait for the disk, or that take roles."""
    client.create_topic("many", 54)
    cluster.until_in_sync("many")
    cluster.spread("many")
    hung, other = 1, 2
    with ExitStack() as after, hanging_at(cluster.brokers[hung], "/many-"):
        after.enter_context(sent(cluster, "many", 54))
        wait_until(lambda: wrote_what_hangs(cluster, hung), "its syncs hang")
        write_everywhere(client)
        cluster.brokers[other].kill()
        write_everywhere(client)


def wrote_what_hangs(cluster: ClusterProcesses, broker: int) -> bool:
    """Whether it has written an event to each partition of the topic that it leads."""
    led = [index for index, each in cluster.partitions("many").items() if each.leader == broker]
    logs = [log for index in led for log in (cluster.brokers[broker].data / "topics" / f"many-{index}").glob("*.log")]
    return len(logs) == 18 and all(each.stat().st_size for each in logs)


def let_expire(cluster: ClusterProcesses, client: blocking.Client, leader: int) -> None:
    """Waits until the events that this broker has in a partition of the topic "t" which it leads have expired."""
    index = next(index for index, each in cluster.partitions("t").items() if each.leader == leader)
    client.alter_topic("t", {"retention.ms": 1})

    def expired() -> bool:
        return any(each["partition"] == f"t-{index}" for each in cluster.events(leader, "segments_deleted"))

    wait_until(expired, "what the leader has of another topic has expired")


def test_events_expire_while_the_disk_hangs_at_another_partition(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    leader = cluster.partitions("hung")[0].leader
    write_everywhere(client)
    with client.producer("hung") as producer:
        producer.send(b"0").result(LONG_S)
    with hanging_at(cluster.brokers[leader], "/hung-0/"):
        client.alter_topic("hung", {"retention.ms": 1})
        write_everywhere(client)
        let_expire(cluster, client, leader)


def test_settings_of_brokers_wait_alone_for_a_disk_that_hangs(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """They change while no events are removed. Retention, new topics and changes of topics' settings go on."""
    leader = cluster.partitions("hung")[0].leader
    write_everywhere(client)
    with client.producer("hung") as producer:
        producer.send(b"0").result(LONG_S)
    folder = cluster.brokers[leader].data / "topics" / "hung-0"
    setting = {"name": "background.threads", "config_operation": 0, "value": "9"}
    changes = [{"resource_type": BROKER, "resource_name": "", "configs": [setting]}]
    with hanging_at(cluster.brokers[leader], "/hung-0/"):
        client.alter_topic("hung", {"retention.ms": 1})
        wait_until(lambda: len([*folder.glob("*.log")]) > 1, "its event is about to be removed")
        with cluster.asked(leader % 3 + 1) as raw:
            raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": changes, "validate_only": False})
        for number in range(3):
            client.create_topic(f"new-{number}", 3)
            cluster.until_in_sync(f"new-{number}")
        let_expire(cluster, client, leader)
