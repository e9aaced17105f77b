"""`krappy backup` of three brokers under load, one of which is killed; `krappy restore` to one broker, or a cluster.

All events that were acknowledged before the backup began are there, at their offsets. The positions of groups are not
beyond the logs' ends, and not below those from before the backup. Transactions are there whole or not at all. Each
table is the fold of its log."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import OFFSETS, SHARES, TRANSACTIONS
from krappy.errors import KrappyError
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.test_cluster import PARTITIONS, Writer, make_topic, read, until_acked
from tests.cluster.test_native_groups import Worker
from tests.process import BrokerProcess, krappy, wait_until

LONG_S = 120.0
PACE = 0.05  # seconds between two transactions
BULK = 3 << 20  # bytes that no other load writes, so that the backup takes a while


def done(*arguments: object) -> Any:
    """Runs a command, which must succeed; returns the JSON that it prints."""
    ended = krappy(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


class Pairs:
    """Writes each number to two topics in one transaction. `acked`: the numbers that were committed."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.acked: list[int] = []
        self._settings = {"bootstrap.servers": cluster.kafka, "transactional.id": "pairs", "linger.ms": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pairs:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(LONG_S)

    def _run(self) -> None:
        producer = Producer(self._settings)
        producer.init_transactions(LONG_S)
        number = 0
        while not self._stop.is_set():
            try:
                producer.begin_transaction()
                for topic in ("left", "right"):
                    producer.produce(topic, str(number).encode(), str(number).encode())
                producer.commit_transaction(LONG_S)
            except KafkaException:
                with suppress(KafkaException):
                    producer.abort_transaction(LONG_S)
            else:
                self.acked.append(number)
            number += 1
            self._stop.wait(PACE)


class Member:
    """A member of a Kafka group. `committed`: by partition, the offset that it has committed."""

    def __init__(self, cluster: ClusterProcesses, topic: str, group: str) -> None:
        self.committed: dict[int, int] = {}
        settings = {"bootstrap.servers": cluster.kafka, "group.id": group, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Member:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(LONG_S)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(KafkaException):
                if self._consumer.consume(50, 0.2):
                    for each in self._consumer.commit(asynchronous=False) or ():
                        if each.error is None:
                            self.committed[each.partition] = each.offset


class Before:
    """What was acknowledged before the backup began."""

    def __init__(self, client: blocking.Client, writer: Writer, pairs: Pairs, member: Member) -> None:
        self.floors = {at.partition: offset for at, offset in client.positions("mail").items()}
        self.written = {partition: list(acked) for partition, acked in writer.acked.items()}
        self.pairs = list(pairs.acked)
        self.committed = dict(member.committed)


@contextmanager
def loaded(cluster: ClusterProcesses, client: blocking.Client) -> Iterator[Before]:
    """Runs load of all kinds during the block. Yields what was acknowledged at its beginning."""
    make_topic(cluster, "t", **{"cleanup.policy": "compact,delete", "segment.bytes": "65536"})
    assigned = {"left": [1, 2, 3], "right": [2, 3, 1], "bulk": [3, 1, 2]}
    made = cluster.admin.create_topics([NewTopic(n, 1, replica_assignment=[r]) for n, r in assigned.items()])
    for name, each in made.items():
        each.result(LONG_S)
        cluster.until_in_sync(name)
    with client.producer("bulk") as producer:
        producer.send_columns(None, [b"%08d" % n * 128 for n in range(BULK >> 10)])
    client.security.set_password("ada", "secret", ["SCRAM-SHA-256"])
    client.security.alter_quotas({"producer_byte_rate": 1e9}, user="ada")
    with Writer(cluster, "t") as writer, Pairs(cluster) as pairs, Member(cluster, "t", "readers") as member:
        writer.pace = 0.4
        worker = Worker(cluster, "t", "mail", pause=0.02)
        try:
            until_acked(writer, 1_000)
            wait_until(lambda: len(pairs.acked) > 5, "pairs are written", LONG_S)
            wait_until(lambda: len(member.committed) == PARTITIONS, "a group commits", LONG_S)
            wait_until(lambda: len(worker.taken) > 50, "a native group goes on", LONG_S)
            cluster.until_in_sync("t")
            for name in (OFFSETS, SHARES, TRANSACTIONS):
                cluster.until_in_sync(name)
            yield Before(client, writer, pairs, member)
        finally:
            with suppress(KrappyError, AssertionError):
                worker.stop()
    assert not writer.failed


def check(before: Before, native: str, kafka: str) -> None:
    """Checks what a restored broker, or cluster, has."""
    with blocking.connect(native, timeout=LONG_S) as client:
        values: dict[str, dict[tuple[int, int], bytes | None]] = {}
        for topic in ("t", "left", "right", "bulk"):
            with client.consumer(topic, start="earliest", end="now") as consumer:
                values[topic] = {(event.partition, event.offset): event.value for event in consumer}
        topics = {each.name: each for each in client.topics()}
        ends = {each.partition: each.end for each in topics["t"].partitions}
        # Of the events, those are there that compaction has left; the newest event of each key is always there.
        newest: dict[tuple[int, int], tuple[int, int]] = {}
        for partition, acked in before.written.items():
            for number, offset in acked:
                assert offset < ends[partition]
                newest[partition, number % 100] = max(newest.get((partition, number % 100), (0, 0)), (offset, number))
        last = {(at[0], int(value or b"") % 100): at[1] for at, value in sorted(values["t"].items())}
        for (partition, key), (offset, number) in newest.items():
            entry = client.table("t").get(f"k{key}", min_offset=None)
            assert entry is not None
            found = values["t"].get((partition, offset))
            assert found == str(number).encode() or last[partition, key] > offset
        left, right = ({int(value or b"") for value in values[topic].values()} for topic in ("left", "right"))
        assert left == right, "half of a transaction"
        assert left >= set(before.pairs)
        assert len(values["bulk"]) == BULK >> 10
        floors = {at.partition: offset for at, offset in client.positions("mail").items()}
        for partition, floor in before.floors.items():
            assert floor <= floors[partition] <= ends[partition]
        assert [each.name for each in client.security.users()] == ["ada"]
        assert [each.rates for each in client.security.quotas(user="ada")] == [{"producer_byte_rate": 1e9}]
        with client.producer("t") as producer:  # new events can be written
            producer.send("more", key="more").result(LONG_S)
    asked = Consumer({"bootstrap.servers": kafka, "group.id": "readers"})
    committed = asked.committed([TopicPartition("t", index) for index in range(PARTITIONS)], LONG_S)
    asked.close()
    for each in committed:
        assert before.committed[each.partition] <= each.offset <= ends[each.partition]
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "pairs"})
    producer.init_transactions(LONG_S)
    producer.begin_transaction()
    producer.produce("left", b"-1")
    producer.commit_transaction(LONG_S)


def check_folder(folder: Path) -> None:
    """Checks by `krappy doctor` that each table is the fold of its log."""
    ended = krappy("doctor", "--data", folder)
    assert ended.returncode == 0, ended.stdout.decode()


def restore_alone(backup: Path, folder: Path, before: Before) -> None:
    done("restore", backup, "--data", folder)
    check_folder(folder)
    with BrokerProcess(folder) as alone:
        check(before, alone.address, alone.kafka)
        assert alone.stop() == 0
    check_folder(folder)


def test_a_backup_under_load_while_a_leader_is_killed(
    cluster: ClusterProcesses, client: blocking.Client, tmp_path: Path, shared_processes: SharedProcesses
) -> None:
    backup = tmp_path / "backup"
    with loaded(cluster, client) as before:
        command = [sys.executable, "-m", "krappy", "backup", backup, "--address", cluster.native, "--max-rate", "1"]
        taken = subprocess.Popen([*map(str, command), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: (backup / "cluster" / "tree.json").exists(), "it copies", LONG_S)
        cluster.brokers[2].kill()
        out, err = taken.communicate(timeout=LONG_S)
        assert taken.returncode == 0, err.decode()
        told = json.loads(out)
        assert told["brokers"] == [1, 2, 3]
        assert list(told["lost_brokers"]) == ["2"]
        cluster.brokers[2].start()
    assert done("doctor", "--backup", backup)["sound"]
    cluster.kill()
    restore_alone(backup, tmp_path / "alone", before)
    restore_to_cluster(backup, tmp_path / "new", before, shared_processes)


def restore_to_cluster(backup: Path, folder: Path, before: Before, shared: SharedProcesses) -> None:
    folder.mkdir()
    done("restore", backup, "--data", folder / "broker-1")
    with brokers(folder, shared=shared) as cluster:
        wait_until(lambda: NOT_YET not in [p.leader for p in cluster.partitions("t").values()], "it is led", LONG_S)
        check(before, cluster.native, cluster.kafka)
        for topic in ("t", "left", "right", "bulk"):
            wait_until(
                lambda topic=topic: all(len(p.isrs) == 3 for p in cluster.partitions(topic).values()),  # type: ignore[misc]
                f"{topic} has three replicas again",
                LONG_S,
            )
        for each in cluster.brokers.values():
            assert each.stop() == 0
        for index in range(PARTITIONS):
            found = [read(each.data, "t", index) for each in cluster.brokers.values()]
            assert max(found[0]) == max(found[1]) == max(found[2])
        for each in cluster.brokers.values():
            check_folder(each.data)


NOT_YET = -1
