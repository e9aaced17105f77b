"""Three brokers as processes, with librdkafka as the client. Every acknowledged event is there once, in order, on every
replica."""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from krappy.records import batch as batches
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.consumers import commit
from tests.process import BrokerProcess, wait_until

PARTITIONS = 6
AT_ONCE = 5  # so many events of a partition are written together, so that there are fewer requests
AHEAD = 2  # so many such requests of a partition may be unanswered: a leader may die between two of them


def make_topic(cluster: ClusterProcesses, name: str, **config: str) -> None:
    [made] = cluster.admin.create_topics([NewTopic(name, PARTITIONS, 3, config=config)]).values()
    made.result(30)


def leaders(cluster: ClusterProcesses, name: str) -> list[int]:
    return [each.leader for each in cluster.partitions(name).values()]


class Writer:
    """Writes numbered events to every partition until it is stopped. `acked`: by partition, the acknowledged events.

    It writes as fast as the brokers answer until `aim` events are acknowledged, and then at most 300 a second (see
    `pace`). A test waits for elections most of the time, and all events have to be read and compared at the end. It
    does not write to a partition that does not answer. A thread of librdkafka (2.16) that has five unanswered requests
    may not send more, and asks again and again, without a pause, whether it may."""

    def __init__(self, cluster: ClusterProcesses, topic: str, **options: Any) -> None:
        settings = {"bootstrap.servers": cluster.kafka, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer({**settings, "delivery.timeout.ms": 60_000, **options})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        # By partition: (number, offset). It has all partitions from the start, because one thread reads it while
        # another one adds to it.
        self.acked: dict[int, list[tuple[int, int]]] = {index: [] for index in range(PARTITIONS)}
        self.aim = 0
        self.pace = 0.1  # seconds between two rounds of writes while the test does not wait for more events
        self.failed: list[str] = []
        self._unanswered = [0] * PARTITIONS  # numbers of events, by partition

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        try:
            self._write()
        except (KafkaException, BufferError) as error:
            self.failed.append(f"the writer ended: {error}")

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition, unanswered in enumerate(self._unanswered):
                for _ in range(AT_ONCE if unanswered <= (AHEAD - 1) * AT_ONCE else 0):
                    self._producer.produce(
                        self._topic,
                        str(number).encode(),
                        f"k{number % 100}",
                        partition,
                        on_delivery=lambda error, message, number=number: self._told(error, message, number),
                    )
                    self._unanswered[partition] += 1
                    number += 1
            self._producer.poll(0.002)
            if self.count >= self.aim:
                self._stop.wait(self.pace)

    def _told(self, error: Any, message: Any, number: int) -> None:
        self._unanswered[message.partition()] -= 1
        if error is not None:
            self.failed.append(str(error))
            return
        self.acked[message.partition()].append((number, message.offset()))

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))


def read(folder: Path, topic: str, partition: int) -> dict[int, bytes]:
    """The values of a stopped broker's log, by offset."""
    log = Log.open(folder / "topics" / f"{topic}-{partition}", TopicConfig())
    found: dict[int, bytes] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        span = log.read_span(offset, 1 << 20)
        for header, view in batches.split(span.data):
            if not header.is_control:
                columns = batches.decode(view)
                found.update(zip(columns.offsets, columns.values, strict=True))  # type: ignore[arg-type]
        offset = span.next_offset
    log.close()
    return found


def check(cluster: ClusterProcesses, topic: str, writer: Writer) -> None:
    """Stops all brokers, and compares what each replica has with what was acknowledged."""
    for each in cluster.brokers.values():
        if each.running:
            each.stop()
    for partition, acked in writer.acked.items():
        replicas = [read(each.data, topic, partition) for each in cluster.brokers.values()]
        longest = max(replicas, key=len)
        for found in replicas:
            assert all(longest[offset] == value for offset, value in found.items()), "the logs differ"
        numbers = [int(value) for _, value in sorted(longest.items())]
        assert len(numbers) == len(set(numbers)), "an event is there twice"
        assert numbers == sorted(numbers), "the order is wrong"
        for number, offset in acked:
            for found in replicas:
                assert found.get(offset) == str(number).encode(), f"{topic}-{partition}: {number} at {offset} is lost"


def until_acked(writer: Writer, more: int) -> None:
    writer.aim = aim = writer.count + more
    wait_until(lambda: writer.count >= aim, f"{more} more events are acknowledged; failed: {writer.failed[:3]}")


def written(cluster: ClusterProcesses, name: str) -> Writer:
    """Makes a topic with events that all replicas have; returns their writer."""
    make_topic(cluster, name)
    with Writer(cluster, name) as writer:
        until_acked(writer, 600)
    cluster.until_in_sync(name)
    assert not writer.failed
    return writer


def test_what_is_acknowledged_is_on_every_replica(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    assert sorted(each.replicas[0] for each in cluster.partitions("t").values()) == [1, 1, 2, 2, 3, 3]
    with Writer(cluster, "t") as writer:
        until_acked(writer, 600)
    assert not writer.failed
    check(cluster, "t", writer)


def test_a_killed_leader_costs_nothing_that_was_acknowledged(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    with Writer(cluster, "t") as writer:
        for id in (2, 3, 1):
            until_acked(writer, 300)
            cluster.brokers[id].kill()
            wait_until(lambda id=id: id not in leaders(cluster, "t"), f"broker {id} leads nothing")  # type: ignore[misc]
            until_acked(writer, 300)
            cluster.brokers[id].start()
            cluster.until_in_sync("t")
    assert not writer.failed
    check(cluster, "t", writer)


def test_a_broker_that_stops_hands_over_first(cluster: ClusterProcesses) -> None:
    """No election waits for the end of the broker's session or of its lease."""
    make_topic(cluster, "t")
    with Writer(cluster, "t") as writer:
        for id in (1, 2, 3):
            until_acked(writer, 300)
            assert cluster.brokers[id].stop() == 0
            assert all(each["leader"] not in (id, -1) and id not in each["isr"] for each in cluster.states("t"))
            until_acked(writer, 300)
            cluster.brokers[id].start()
            cluster.until_in_sync("t")
    assert not writer.failed
    check(cluster, "t", writer)


def test_a_group_reads_from_all_brokers_and_goes_on_at_new_leaders(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    options = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": cluster.kafka, **options})
    consumer.subscribe(["t"])
    read: dict[int, list[int]] = defaultdict(list)

    def until_read(count: int) -> None:
        end = time.monotonic() + 60
        while sum(map(len, read.values())) < count:
            assert time.monotonic() < end, f"read {sum(map(len, read.values()))} of {count}"
            for message in consumer.consume(500, 0.2):
                if not message.error():
                    read[message.partition()].append(int(message.value()))

    with Writer(cluster, "t") as writer:
        until_acked(writer, 600)
        until_read(300)
        commit(consumer)
        coordinator = cluster.coordinator("g")
        victim = next(id for id in cluster.brokers if id != coordinator)
        cluster.brokers[victim].kill()
        until_acked(writer, 600)
        until_read(900)
        commit(consumer)
    until_read(writer.count)
    consumer.close()
    for partition, acked in writer.acked.items():
        assert read[partition] == [number for number, _ in sorted(acked, key=lambda each: each[1])]


def test_a_folder_of_a_broker_that_was_alone_joins(cluster: ClusterProcesses) -> None:
    """The folder is not copied. Its topics, tables and groups become those of the cluster."""
    first = cluster.brokers[1]
    first.stop()
    shutil.rmtree(first.data)
    with BrokerProcess(first.data, listen_kafka=first.settings["listen_kafka"]) as alone:
        admin = AdminClient({"bootstrap.servers": alone.kafka})
        [made] = admin.create_topics([NewTopic("old", PARTITIONS, 1, config={"retention.ms": "900000000"})]).values()
        made.result(30)
        with Writer(cluster, "old", **{"bootstrap.servers": alone.kafka}) as writer:
            until_acked(writer, 600)
        member = Consumer({"bootstrap.servers": alone.kafka, "group.id": "old group"})
        commit(member, [TopicPartition("old", 3, 5)])
        member.close()
        assert alone.stop() == 0
    first.settings["broker_id"] = 7  # broker 1 of the cluster had another folder
    first.start()
    wait_until(lambda: leaders(cluster, "old") == [7] * PARTITIONS, "the folder's broker leads its topic")
    with Writer(cluster, "old") as more:
        until_acked(more, 600)
    [described] = cluster.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "old")]).values()
    assert described.result(30)["retention.ms"].value == "900000000"
    member = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "old group"})
    assert [each.offset for each in member.committed([TopicPartition("old", 3)], 30)] == [5]
    member.close()
    assert first.stop() == 0
    for index in range(PARTITIONS):
        found = read(first.data, "old", index)
        for number, offset in (*writer.acked[index], *more.acked[index]):
            assert found[offset] == str(number).encode()


def test_a_topic_that_was_made_anew_while_a_broker_was_away(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    with Writer(cluster, "t") as old:
        until_acked(old, 600)
    cluster.brokers[3].kill()
    wait_until(lambda: 3 not in leaders(cluster, "t"), "others lead the topic")
    cluster.admin.delete_topics(["t"])["t"].result(30)
    make_topic(cluster, "other")  # once it exists, the deletion of "t" is known, too
    made = cluster.admin.create_topics([NewTopic("t", PARTITIONS, 2)])["t"]
    made.result(30)
    cluster.brokers[3].start()
    with Writer(cluster, "t") as writer:
        until_acked(writer, 600)
    cluster.until_in_sync("other")
    cluster.check_errors()
