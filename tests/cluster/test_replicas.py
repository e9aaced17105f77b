"""Replicas in processes of their own must not commit for each other, and must not bring back what was deleted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from krappy import blocking
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.test_cluster import PARTITIONS, Writer, check, leaders, make_topic, until_acked
from tests.kafka.raw import Raw
from tests.process import PATIENCE, Stopwatch, wait_until

LATEST, EARLIEST = -1, -2  # timestamps with these meanings in ListOffsets
QUICK = {"cleaner_backoff_ms": 300, "retention_check_ms": 300}
# Tombstones are removed as soon as a second compaction finds them.
EAGER = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "segment.ms": "300",
}


@pytest.fixture
def cluster(tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, shared=shared_processes, **QUICK) as made:
        yield made


def fetch(raw: Raw, at: dict[str, Any], replica: int, broker_epoch: int, offset: int, last: int = -1) -> dict[str, Any]:
    """The answer about one partition to a replica's Fetch. `at`: topic_id, partition_index, leader_epoch."""
    partition = {
        "partition": at["partition_index"],
        "current_leader_epoch": at["leader_epoch"],
        "fetch_offset": offset,
        "last_fetched_epoch": last,
        "log_start_offset": 0,
        "partition_max_bytes": 1 << 20,
    }
    body = {
        "replica_state": {"replica_id": replica, "replica_epoch": broker_epoch},
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": at["topic_id"], "partitions": [partition]}],
        "forgotten_topics_data": [],
    }
    [topic] = raw.ask(ApiKey.FETCH, body)["responses"]
    [found] = topic["partitions"]
    return dict(found)


def led_by(raw: Raw, topic: str, broker: int) -> dict[str, Any]:
    """A partition that this broker leads."""
    [found] = raw.ask(ApiKey.METADATA, {"topics": [{"topic_id": bytes(16), "name": topic}]})["topics"]
    at = next(each for each in found["partitions"] if each["leader_id"] == broker)
    return {**at, "topic_id": found["topic_id"]}


class Acks:
    """A producer of single events to one partition."""

    def __init__(self, cluster: ClusterProcesses, partition: int, **options: Any) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.kafka, "delivery.timeout.ms": 60_000, **options})
        self._partition = partition
        self.acked: list[int] = []

    def send(self, value: bytes, key: bytes | None = None) -> None:
        self._producer.produce("t", value, key, self._partition, on_delivery=self._told)
        self._producer.poll(0)

    def _told(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acked.append(message.offset())

    def within(self, seconds: float) -> int:
        """Waits up to this time; returns how many events were acknowledged so far."""
        self._producer.flush(seconds)
        return len(self.acked)


def test_nobody_commits_for_a_replica_whose_epoch_is_another(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    cluster.until_in_sync("t")
    with Raw(str(cluster.brokers[1].settings["listen_kafka"])) as raw:
        at = led_by(raw, "t", 1)
        index = at["partition_index"]
        acks = Acks(cluster, index)
        acks.send(b"0")
        assert acks.within(30) == 1
        epochs = (-1, 0, 2**60)
        for epoch in epochs:
            answer = fetch(raw, at, 2, epoch, 1, at["leader_epoch"])
            wrong = Code.UNKNOWN_LEADER_EPOCH if epoch > 100 else Code.NOT_LEADER_OR_FOLLOWER
            assert (answer["error_code"], answer["records"]) in ((wrong, b""), (wrong, None))
        # The true replicas go on as if nothing had been.
        watch = Stopwatch(*(each.pid for each in cluster.brokers.values()))
        acks.send(b"1")
        assert acks.within(30) == 2
        assert watch.seconds < 5
        assert sorted(cluster.partitions("t")[index].isrs) == [1, 2, 3]
        # While the true replicas are stopped, nobody can commit in their name.
        for id in (2, 3):
            os.kill(cluster.brokers[id].pid, signal.SIGSTOP)
        try:
            acks.send(b"2")
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                for id in (2, 3):
                    for epoch in epochs:
                        assert fetch(raw, at, id, epoch, 3, at["leader_epoch"])["error_code"] != Code.NONE
                assert acks.within(0.05) == 2
        finally:
            for id in (2, 3):
                os.kill(cluster.brokers[id].pid, signal.SIGCONT)
        assert acks.within(60) == 3


def test_acks_1_does_not_wait_for_followers(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    cluster.until_in_sync("t")
    with Raw(str(cluster.brokers[1].settings["listen_kafka"])) as raw:
        index = led_by(raw, "t", 1)["partition_index"]
    alone, all = Acks(cluster, index, acks=1), Acks(cluster, index, acks="all")
    for each in (alone, all):  # now both producers know the leader
        each.send(b"first")
        assert each.within(30) == 1
    for id in (2, 3):
        os.kill(cluster.brokers[id].pid, signal.SIGSTOP)
    try:
        all.send(b"waits")
        for number in range(20):
            alone.send(b"%d" % number)
        assert alone.within(30) == 21
        assert all.within(0.1) == 1
    finally:
        for id in (2, 3):
            os.kill(cluster.brokers[id].pid, signal.SIGCONT)
    assert all.within(60) == 2
    with Writer(cluster, "t") as writer:
        until_acked(writer, 1_000)
    assert not writer.failed


def test_a_broker_that_was_away_brings_no_deleted_keys_back(cluster: ClusterProcesses) -> None:
    """The tombstones of these keys were removed while the broker was away. Then it leads."""
    make_topic(cluster, "t", **EAGER)
    cluster.until_in_sync("t")
    keys = [b"k%03d" % n for n in range(60)]
    with blocking.connect(cluster.native, timeout=60) as client:
        table = client.table("t")
        with client.producer("t") as producer:
            producer.send_columns(keys, [b"v"] * len(keys))
            cluster.until_in_sync("t")
            away = cluster.brokers[3]
            away.kill()
            wait_until(lambda: 3 not in leaders(cluster, "t"), "others lead")
            gone, kept = keys[::2], keys[1::2]
            for key in gone:
                producer.send(None, key=key).result(60)
            # Waits until the logs of the two others have nothing of the deleted keys. New events let segments be
            # closed.
            filler = [b"filler %d" % n for n in range(30)]

            def is_compacted() -> bool:
                producer.send_columns(filler, [b"f"] * len(filler))
                time.sleep(0.3)
                return not any(_keys(cluster, id) & set(gone) for id in (1, 2))

            wait_until(is_compacted, "the deleted keys are out of the logs")
            away.start()
            cluster.until_in_sync("t")
            assert cluster.events(3, "log_started_over")
            for id in (1, 2):
                cluster.brokers[id].kill()
                wait_until(lambda id=id: id not in leaders(cluster, "t"), f"broker {id} leads nothing")  # type: ignore[misc]
                if id == 1:
                    cluster.brokers[1].start()
                    cluster.until_in_sync("t")
            found = table.get_many(keys)
    there = {key for key, entry in zip(keys, found, strict=True) if entry is not None and entry.value is not None}
    assert there == set(kept)


def _keys(cluster: ClusterProcesses, id: int) -> set[bytes]:
    """The keys whose bytes stand in a broker's log files."""
    data = b"".join(each.read_bytes() for each in (cluster.brokers[id].data / "topics").glob("t-*/*.log"))
    return {key for key in (b"k%03d" % n for n in range(60)) if key in data}


def test_deleted_records_do_not_come_back_with_another_leader(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t", **{"segment.bytes": "20000"})
    cluster.until_in_sync("t")
    deleted = dict.fromkeys(range(PARTITIONS), 0)
    with Writer(cluster, "t") as writer:
        for id in (1, 2, 3):
            until_acked(writer, 1_000)
            for index in range(PARTITIONS):
                deleted[index] = _delete_half(cluster, index)
            cluster.brokers[id].kill()
            wait_until(lambda id=id: id not in leaders(cluster, "t"), f"broker {id} leads nothing")  # type: ignore[misc]
            assert _starts(cluster) == deleted
            cluster.brokers[id].start()
            cluster.until_in_sync("t")
            assert _starts(cluster) == deleted
    assert not writer.failed
    assert min(deleted.values()) > 0
    for partition, acked in writer.acked.items():
        acked[:] = [(number, offset) for number, offset in acked if offset >= deleted[partition]]
    check(cluster, "t", writer)


def _starts(cluster: ClusterProcesses) -> dict[int, int]:
    """The log start of each partition, as its leader tells it."""
    found = {}
    for index in range(PARTITIONS):
        with _leader(cluster, index) as raw:
            found[index] = _offset(raw, index, EARLIEST)
    return found


def _delete_half(cluster: ClusterProcesses, index: int) -> int:
    """Deletes a partition's records below half of its end offset; returns the new log start."""
    with _leader(cluster, index) as raw:
        partition = {"partition_index": index, "offset": _offset(raw, index, LATEST) // 2}
        body = {"topics": [{"name": "t", "partitions": [partition]}], "timeout_ms": 60_000}
        [[found]] = [each["partitions"] for each in raw.ask(ApiKey.DELETE_RECORDS, body)["topics"]]
    assert found["error_code"] == Code.NONE
    return int(found["low_watermark"])


def _leader(cluster: ClusterProcesses, index: int) -> Raw:
    """A connection to the leader of a partition. Waits until that broker serves as the leader. (An AdminClient would
    ask the last leader that it knew, until its timeout.)"""
    end = time.monotonic() + PATIENCE
    while True:
        if (leader := cluster.partitions("t")[index].leader) in cluster.running:
            raw = cluster.asked(leader)
            if _offset(raw, index, EARLIEST) >= 0:
                return raw
            raw.close()
        assert time.monotonic() < end, f"nobody leads t-{index}"
        time.sleep(0.05)


def _offset(raw: Raw, index: int, which: int) -> int:
    """The first or the last offset of a partition; -1 from a broker that does not lead it."""
    asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": which}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [asked]}]}
    [found] = raw.ask(ApiKey.LIST_OFFSETS, body)["topics"][0]["partitions"]
    return int(found["offset"])
