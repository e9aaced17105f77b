"""Committed offsets are Kafka's records in `__consumer_offsets`, once all brokers know this format."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kazoo.client import KazooClient

from krappy.clients.acls import AclInfo
from krappy.core.cluster.coordinators import partition_of
from krappy.records.batch import encode
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.cluster.consumers import commit
from tests.cluster.offset_records import TOPIC, OffsetsTopic, ReadOffset, read_offsets
from tests.cluster.secured import SecuredProcesses
from tests.cluster.test_cluster import PARTITIONS, make_topic
from tests.cluster.test_groups import committed, consumer
from tests.process import PATIENCE, wait_until
from tests.security.authority import Authority


def read(cluster: ClusterProcesses, group: str) -> OffsetsTopic:
    return read_offsets(cluster.kafka, group)


def latest(cluster: ClusterProcesses, group: str, partition: int) -> ReadOffset:
    found = read(cluster, group).latest[group, "t", partition]
    assert found is not None
    return found


def commit_for(cluster: ClusterProcesses, group: str, offset: int, retention_ms: int) -> None:
    """Commits an offset as clients before Kafka 2.1 did: they say how long it is kept."""
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "kept"}
    topics = [{"name": "t", "partitions": [partition]}]
    body = {"group_id": group, "member_id": "", "retention_time_ms": retention_ms, "topics": topics}
    with cluster.asked(cluster.coordinator(group)) as raw:

        def is_done() -> bool:
            [topic] = raw.ask(ApiKey.OFFSET_COMMIT, body, 3)["topics"]
            return bool(topic["partitions"][0]["error_code"] == Code.NONE)

        wait_until(is_done, "it is committed")


def delete_group(cluster: ClusterProcesses, group: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            [deleted] = cluster.admin.delete_consumer_groups([group], request_timeout=30).values()
            deleted.result(30)
            return
        except KafkaException:
            assert time.monotonic() < end, "the group is not deleted"


def test_a_reader_of_the_topic_sees_each_commit_and_each_deletion(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    one = consumer(cluster, "g")
    began = int(time.time() * 1000)
    commit(one, [TopicPartition("t", 0, 7, "m"), TopicPartition("t", 1, 1 << 40)])
    commit(one, [TopicPartition("t", 1, 9)])
    one.close()
    found = read(cluster, "g")
    assert [(at, each.offset, each.metadata) for at, each in found.values] == [
        (("g", "t", 0), 7, "m\0"),
        (("g", "t", 1), 1 << 40, ""),
        (("g", "t", 1), 9, ""),
    ]
    now = int(time.time() * 1000)
    assert all((each.version, each.epoch) == (3, -1) for _, each in found.values)
    assert all(began - 1000 <= each.committed <= now + 1000 for _, each in found.values)
    assert found.kinds() == {b"kg/"}
    commit_for(cluster, "g", 11, 3_600_000)
    last = latest(cluster, "g", 0)
    assert last == ReadOffset(1, 11, None, "kept", last.committed, last.committed + 3_600_000)
    commit_for(cluster, "g", 12, (1 << 63) - 1)
    last = latest(cluster, "g", 0)
    assert (last.offset, last.expires) == (12, (1 << 63) - 1)
    assert committed(cluster, "g", "t")[:2] == [12, 9]
    delete_group(cluster, "g")
    found = read(cluster, "g")
    assert found.latest == {("g", "t", 0): None, ("g", "t", 1): None}
    assert found.kinds() == set()


def test_a_reader_sees_offsets_of_a_transaction_when_it_is_committed(cluster: ClusterProcesses) -> None:
    """This is so for a reader of uncommitted events, too. No reader sees offsets of an aborted transaction."""
    make_topic(cluster, "t")
    one = consumer(cluster, "g")
    commit(one, [TopicPartition("t", 0, 1)])
    producer = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "x"})
    producer.init_transactions(PATIENCE)
    for offset, ends in ((5, producer.abort_transaction), (6, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("t", b"v")
        producer.send_offsets_to_transaction([TopicPartition("t", 0, offset)], one.consumer_group_metadata(), PATIENCE)
        producer.flush(PATIENCE)
        found = read(cluster, "g")
        assert [each.offset for _, each in found.values] == [1]
        assert b"kp/" in found.kinds()
        ends(PATIENCE)
    wait_until(lambda: committed(cluster, "g", "t")[0] == 6, "the offset is the group's")
    found = read(cluster, "g")
    assert [each.offset for _, each in found.values] == [1, 6]
    assert found.kinds() == {b"kg/"}
    one.close()


def test_only_users_who_may_read_the_topic_read_offsets(tmp_path: Path, shared_processes: SharedProcesses) -> None:
    """Only a user who may read the topic can read offsets, and no user can write to it."""
    secured = SecuredProcesses(tmp_path, Authority(tmp_path), shared_processes)
    try:
        secured.start()
        with secured.connect(1) as admin:
            admin.create_topic("t", PARTITIONS, replication_factor=3)
            one = Consumer({**secured.options(), "group.id": "g"})
            commit(one, [TopicPartition("t", 0, 7)])
            one.close()
            at = partition_of("g", len(secured.partitions(TOPIC)))

            def fetched() -> int:
                """The code with which the partition's leader answers eve's Fetch."""
                with secured.asked(secured.partitions(TOPIC)[at].leader, "eve") as raw:
                    return int(raw.fetch(TOPIC, 0, at)["error_code"])

            def refused() -> bool:
                """Whether a broker does not know yet that eve may read."""
                codes = []
                for id in secured.brokers:
                    with secured.asked(id, "eve") as raw:
                        codes.append(raw.fetch(TOPIC, 0, at)["error_code"])
                return Code.TOPIC_AUTHORIZATION_FAILED in codes

            assert fetched() == Code.TOPIC_AUTHORIZATION_FAILED
            admin.add_acls([AclInfo("group", "reader", "User:eve", "read")])
            admin.add_acls([AclInfo("topic", TOPIC, "User:eve", each) for each in ("read", "write")])
            wait_until(lambda: not refused() and fetched() == Code.NONE, "eve may read")
            options = secured.options("eve")
            found = read_offsets(options.pop("bootstrap.servers"), "g", **options)
            assert [(key, each.offset) for key, each in found.values] == [(("g", "t", 0), 7)]
            with secured.asked(secured.partitions(TOPIC)[at].leader, "eve") as raw:
                told = raw.produce(TOPIC, encode([b"\0\1"], [b"v"], timestamps=0), at)
            assert told["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    finally:
        secured.kill()


@contextlib.contextmanager
def earlier_broker(cluster: ClusterProcesses) -> Iterator[None]:
    """Registers a broker of an earlier version, which knows no features, during this block. Waits until the other
    brokers know it."""
    kazoo = KazooClient(hosts=cluster.brokers[1].settings["zookeeper_connect"])
    kazoo.start(PATIENCE)
    registration = {"version": 5, "endpoints": ["OLD://127.0.0.1:1"], "rack": None, "broker_epoch": 1}
    try:
        kazoo.create("/brokers/ids/9", json.dumps({**registration, "draining": True}).encode(), ephemeral=True)
        for broker in cluster.brokers.values():
            url = f"http://{broker.http}/api/v1/cluster/state"

            def is_known(url: str = url) -> bool:
                return any(each["id"] == 9 for each in httpx.get(url, timeout=30).json()["brokers"])

            wait_until(is_known, "the broker is known")
        yield
    finally:
        kazoo.stop()
        kazoo.close()


def positions(cluster: ClusterProcesses, groups: dict[str, list[int]]) -> None:
    """Checks the committed offsets of these groups."""
    for group, wanted in groups.items():
        assert committed(cluster, group, "t") == wanted, group


def test_offsets_become_records_once_no_broker_is_of_an_earlier_version(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    wanted = {group: [10 * at + index for index in range(PARTITIONS)] for at, group in enumerate(("a", "b", "c"))}
    with earlier_broker(cluster):
        members: dict[str, Consumer] = {}
        for group, offsets in {**wanted, "gone": [99] * PARTITIONS}.items():
            members[group] = consumer(cluster, group)
            commit(members[group], [TopicPartition("t", index, offset) for index, offset in enumerate(offsets)])
        commit_for(cluster, "kept", 5, 3_600_000)
        cluster.until_in_sync(TOPIC)
        for group in members:
            found = read(cluster, group)
            assert not found.latest
            assert b"ko/" in found.kinds()
        members.pop("gone").close()
        delete_group(cluster, "gone")
        positions(cluster, wanted)
    for group, offsets in wanted.items():
        wait_until(lambda group=group: bool(read(cluster, group).latest), f"the offsets of {group} are records")  # type: ignore[misc]
        found = read(cluster, group)
        assert found.kinds() == {b"kg/"}
        assert [latest(cluster, group, index).offset for index in range(PARTITIONS)] == offsets
    wait_until(lambda: bool(read(cluster, "kept").latest), "the offset of an older client is a record")
    kept = latest(cluster, "kept", 0)
    assert kept.expires == kept.committed + 3_600_000
    positions(cluster, wanted)
    delete_group(cluster, "c")
    wanted |= {"b": [77] * PARTITIONS, "c": [-1001] * PARTITIONS, "gone": [-1001] * PARTITIONS}
    commit(members["b"], [TopicPartition("t", index, 77) for index in range(PARTITIONS)])
    for id in list(cluster.brokers):  # each broker coordinates in turn
        cluster.brokers[id].kill()
        positions(cluster, wanted)
        cluster.brokers[id].start()
        cluster.until_in_sync(TOPIC)
    with earlier_broker(cluster):  # records stay records
        commit(members["a"], [TopicPartition("t", 0, 78)])
        assert latest(cluster, "a", 0).offset == 78
    assert read(cluster, "a").kinds() == {b"kg/"}
    for member in members.values():
        member.close()
