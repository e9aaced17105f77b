"""Transactions of a cluster outlive their coordinator, the leaders of their partitions, and both at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from krappy.broker.topics.internal_topics import OFFSETS, TRANSACTIONS
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers, make_alone
from tests.cluster.consumers import ends
from tests.cluster.scattered_transactions import ScatteredProducer, coordinator_of, leader_of
from tests.cluster.test_cluster import make_topic
from tests.cluster.transfers import ACCOUNTS, GROUP, ORDERS, PARTITIONS, Mover, place_orders, read_moves
from tests.cluster.zookeeper import Missing
from tests.long import LONG, some
from tests.process import PATIENCE, wait_until

EACH_ROUND = 60  # the number of orders in a round
DEBUGGING = -2  # a replica id with which followers answer, too


def check_nothing_is_open(cluster: ClusterProcesses, topic: str) -> None:
    """Checks that no transaction is open in the topic: at each running replica, the last stable offset is the high
    watermark, and both are equal to the leader's."""
    for index, partition in cluster.partitions(topic).items():
        with cluster.asked(leader_of(cluster, topic, index)) as raw:
            [found] = raw.ask(ApiKey.DESCRIBE_PRODUCERS, {"topics": [{"name": topic, "partition_indexes": [index]}]})[
                "topics"
            ][0]["partitions"]
        assert found["error_code"] == 0
        hanging = [each for each in found["active_producers"] if each["current_txn_start_offset"] >= 0]
        assert not hanging, f"{topic}-{index}: {hanging}"
        told: dict[int, tuple[int, int]] = {}

        def agree(
            index: int = index, replicas: list[int] = partition.replicas, told: dict[int, tuple[int, int]] = told
        ) -> bool:
            told.update({id: ends_at(cluster, id, topic, index) for id in replicas if id in cluster.running})
            return len({*told.values()}) == 1 and all(high == stable for high, stable in told.values())

        wait_until(agree, f"the replicas of {topic}-{index} have the same ends, and nothing open")


def ends_at(cluster: ClusterProcesses, broker: int, topic: str, index: int) -> tuple[int, int]:
    """The high watermark and the last stable offset of one replica, which need not be the leader."""
    partition = {"partition": index, "fetch_offset": 0, "partition_max_bytes": 0}
    body = {
        "replica_id": DEBUGGING,
        "min_bytes": 0,
        "isolation_level": 1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    with cluster.asked(broker) as raw:
        [found] = raw.ask(ApiKey.FETCH, body, 11)["responses"][0]["partitions"]
    assert found["error_code"] == 0
    return found["high_watermark"], found["last_stable_offset"]


def check_moved_once(cluster: ClusterProcesses, orders: int) -> None:
    found = read_moves(cluster.kafka)
    wanted = {(number, sign * (1 + number % 7)) for number in range(orders) for sign in (-1, 1)}
    assert sum(amount * times for (_, amount), times in found.items()) == 0
    assert set(found) == wanted
    assert max(found.values()) == 1


def until_all_is_read(cluster: ClusterProcesses, orders: int, seconds: float) -> None:
    """Waits until the group has committed the ends of all partitions of the orders."""
    asked = Consumer({"bootstrap.servers": cluster.kafka, "group.id": GROUP, "isolation.level": "read_committed"})
    ends = [sum(number % PARTITIONS == index for number in range(orders)) for index in range(PARTITIONS)]

    def read() -> bool:
        try:
            found = asked.committed([TopicPartition(ORDERS, index) for index in range(PARTITIONS)], 30)
        except KafkaException:  # nobody coordinates the group now
            return False
        assert all(each.offset <= end for each, end in zip(found, ends, strict=True))
        return [each.offset for each in found] == ends

    wait_until(read, "the group has read all orders", seconds)
    asked.close()


def test_money_moves_while_coordinator_and_leaders_are_killed(cluster: ClusterProcesses) -> None:
    make_topic(cluster, ORDERS)
    make_topic(cluster, ACCOUNTS)
    placed = 0
    with Mover(cluster.kafka, "mover") as mover:
        for _ in range(2 if LONG else 1):
            for kind in ("coordinator", "leader", "both"):
                cluster.spread(ACCOUNTS)  # so that not only the coordinator leads partitions
                place_orders(cluster, placed, EACH_ROUND)
                placed += EACH_ROUND
                before = mover.done
                wait_until(lambda before=before: mover.done > before + 1, f"it moves before {kind}", 60)  # type: ignore[misc]
                at = coordinator_of(cluster, "mover")
                leader = next(
                    each.leader for each in cluster.partitions(ACCOUNTS).values() if each.leader not in (at, -1)
                )
                killed = {"coordinator": [at], "leader": [leader], "both": [at, leader]}[kind]
                for id in killed:
                    cluster.brokers[id].kill()
                if kind != "both":  # if only one of three brokers runs, nothing can be committed
                    until_all_is_read(cluster, placed, 90)
                for id in killed:
                    cluster.brokers[id].begin()
                for id in killed:
                    cluster.brokers[id].ready()
                until_all_is_read(cluster, placed, 120)
                for topic in (ORDERS, ACCOUNTS, OFFSETS, TRANSACTIONS):
                    cluster.until_in_sync(topic)
    check_moved_once(cluster, placed)
    check_nothing_is_open(cluster, ACCOUNTS)


def values(cluster: ClusterProcesses, topic: str, index: int) -> list[bytes]:
    """The values that a reader of committed events gets, up to the present end of the partition. Waits until all
    transactions below it are decided."""
    settings = {"bootstrap.servers": cluster.kafka, "group.id": "r", "fetch.wait.max.ms": 10}
    # The other reader's end is before undecided events.
    anything = Consumer({**settings, "isolation.level": "read_uncommitted"})
    try:
        _, stop = ends(anything, topic, index)
    finally:
        anything.close()
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    at = TopicPartition(topic, index, 0)
    reader.assign([at])
    found: list[bytes] = []
    end = time.monotonic() + PATIENCE
    try:
        while reader.position([at])[0].offset < stop:
            found += [each.value() for each in reader.consume(100, 0.02) if each.error() is None]
            assert time.monotonic() < end, f"{topic}-{index} is not decided up to {stop}"
    finally:
        reader.close()
    return found


@pytest.mark.parametrize("bumps", [False, True])
def test_a_batch_under_another_transactional_id_is_refused(cluster: ClusterProcesses, bumps: bool) -> None:
    """It is refused even if a new leader does not know yet whose transaction is open in its log. The transaction's own
    producer can go on there."""
    topic = f"of-others-{bumps}"
    make_topic(cluster, topic)
    producer, other = (ScatteredProducer(cluster, f"{name}-{bumps}", bumps=bumps).init() for name in ("hers", "his"))
    assert other.add((topic, 0)) == Code.NONE  # the other producer has a transaction there, too

    def tries() -> None:
        other.id, other.epoch = producer.id, producer.epoch
        for sequence in (0, 1, 7):
            other.sequences[topic, 0] = sequence
            assert other.write(topic, 0) in (Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_TXN_STATE)

    def add() -> None:
        if not bumps:
            assert producer.add((topic, 0)) == Code.NONE

    add()
    tries()
    assert producer.write(topic, 0, b"one") == Code.NONE
    tries()
    leader = leader_of(cluster, topic, 0)
    cluster.brokers[leader].stop()
    tries()
    assert producer.write(topic, 0, b"two") == Code.NONE
    cluster.brokers[leader].start()
    tries()
    assert producer.end(commit=True) == Code.NONE
    tries()
    add()
    assert producer.write(topic, 0, b"three") == Code.NONE
    assert producer.end(commit=True) == Code.NONE
    assert values(cluster, topic, 0) == [b"one", b"two", b"three"]


def test_late_batches_and_zombies_are_refused(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    one = ScatteredProducer(cluster, "x").init()
    assert one.write("t", 0, b"not begun") == Code.TRANSACTION_ABORTABLE
    assert one.add(("t", 0), ("t", 1), ("t", 2)) == Code.NONE
    for index in range(3):
        assert one.write("t", index, b"committed") == Code.NONE
    assert one.write("t", 3, b"not added") == Code.TRANSACTION_ABORTABLE
    assert one.end(commit=True) == Code.NONE
    wait_until(lambda: one.state() == "CompleteCommit", "it is committed")
    assert one.write("t", 0, b"late") == Code.TRANSACTION_ABORTABLE

    # A deposed coordinator would end the next transaction as it has decided about the last one.
    assert one.add(("t", 0)) == Code.NONE
    assert one.write("t", 0, b"aborted") == Code.NONE
    assert one.mark("t", 0, commit=True, coordinator_epoch=-1) == Code.TRANSACTION_COORDINATOR_FENCED

    before = coordinator_of(cluster, "x")
    cluster.brokers[before].kill()
    wait_until(lambda: coordinator_of(cluster, "x") != before, "there is another coordinator")
    two = ScatteredProducer(cluster, "x").init()
    assert two.id == one.id
    assert two.epoch > one.epoch
    assert one.write("t", 0, b"zombie") == Code.INVALID_PRODUCER_EPOCH
    assert one.end(commit=True) == Code.PRODUCER_FENCED
    assert two.add(("t", 0)) == Code.NONE
    assert two.write("t", 0, b"of two") == Code.NONE
    assert two.end(commit=True) == Code.NONE
    wait_until(lambda: two.state() == "CompleteCommit", "it is committed")
    assert values(cluster, "t", 0) == [b"committed", b"of two"]
    assert values(cluster, "t", 1) == values(cluster, "t", 2) == [b"committed"]
    check_nothing_is_open(cluster, "t")


@pytest.mark.parametrize("commit", some([True, False], 2))
def test_the_next_coordinator_completes_what_was_decided(cluster: ClusterProcesses, commit: bool) -> None:
    """The coordinator dies between its decision and the last marker, because the leader of one partition was away."""
    make_topic(cluster, "t")
    one = ScatteredProducer(cluster, "x").init()
    cluster.until_in_sync(TRANSACTIONS)
    first = coordinator_of(cluster, "x")
    away = next(id for id in cluster.brokers if id != first)
    with cluster.asked(away) as raw:
        assert make_alone(raw, away) == Code.NONE
    there = next(index for index in range(PARTITIONS) if leader_of(cluster, "t", index) != away)
    assert one.add(("t", there), ("alone", 0)) == Code.NONE
    assert one.write("t", there) == one.write("alone", 0) == Code.NONE
    cluster.brokers[away].kill()
    assert one.end(commit) == Code.NONE
    assert one.state() == ("PrepareCommit" if commit else "PrepareAbort")
    cluster.brokers[first].kill()
    cluster.brokers[away].start()
    wait_until(lambda: one.state() == ("CompleteCommit" if commit else "CompleteAbort"), "the next one completes it")
    assert values(cluster, "t", there) == values(cluster, "alone", 0) == ([b"v"] if commit else [])
    check_nothing_is_open(cluster, "alone")


def test_a_transaction_that_takes_too_long_is_aborted_by_the_next_coordinator(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    one = ScatteredProducer(cluster, "x").init(timeout_ms=8_000)
    assert one.add(("t", 0)) == Code.NONE
    assert one.write("t", 0) == Code.NONE
    cluster.brokers[coordinator_of(cluster, "x")].kill()
    wait_until(lambda: one.state() == "CompleteAbort", "it is aborted")
    assert one.write("t", 0, b"late") == Code.INVALID_PRODUCER_EPOCH
    assert values(cluster, "t", 0) == []
    check_nothing_is_open(cluster, "t")


def test_transactions_go_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    try:
        with brokers(tmp_path) as cluster:
            make_topic(cluster, "t")
            one = ScatteredProducer(cluster, "x").init()
            os.kill(cluster.zookeeper.pid, signal.SIGSTOP)
            try:
                time.sleep(2)  # the leases for reads end in this time
                assert one.add(("t", 0), ("t", 1)) == Code.NONE
                assert one.write("t", 0) == one.write("t", 1) == Code.NONE
                assert one.end(commit=True) == Code.NONE
            finally:
                os.kill(cluster.zookeeper.pid, signal.SIGCONT)
            wait_until(lambda: one.state() == "CompleteCommit", "it is committed")
            assert values(cluster, "t", 0) == values(cluster, "t", 1) == [b"v"]
    except Missing as reason:
        pytest.skip(str(reason))


def test_the_topic_of_transactional_ids_is_made_as_the_settings_say(
    tmp_path: Path, shared_processes: SharedProcesses
) -> None:
    settings = {"num_partitions": 4, "replication_factor": 2, "min_isr": 1}
    given = {f"transaction_state_log_{name}": value for name, value in settings.items()}
    with brokers(tmp_path, shared=shared_processes, **given) as cluster:
        make_topic(cluster, "t")
        one = ScatteredProducer(cluster, "x").init()
        found = cluster.partitions(TRANSACTIONS)
        assert len(found) == 4
        assert {len(each.replicas) for each in found.values()} == {2}
        assert {state["min_isr"] for state in cluster.states(TRANSACTIONS)} == {1}
        assert one.add(("t", 0)) == one.write("t", 0) == Code.NONE
        assert one.end(commit=True) == Code.NONE
        [told] = cluster.admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
        names = {f"transaction.state.log.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
        assert {name: told.result(30)[name].value for name in names} == names
