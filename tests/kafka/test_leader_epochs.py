"""A broker leads its partitions in a new epoch after each start, and tells which events are of which epoch
(KIP-320)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw
from tests.peer import Peer
from tests.process import BrokerProcess, Launcher, broker_process, free_address

LATEST, EARLIEST = -1, -2


def publish(broker: BrokerProcess, count: int) -> None:
    with Peer(broker.address) as peer:
        handle = peer.producer("t").handle
        for number in range(count):
            peer.ask(m.Message(handle, b"%d" % number, key=b"k%d" % number), m.MessageStored)


def end_of(raw: Raw, epoch: int, current: int = -1) -> tuple[int, int, int]:
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [partition]}]}
    [topic] = raw.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, body)["topics"]
    [found] = topic["partitions"]
    return found["error_code"], found["leader_epoch"], found["end_offset"]


def told(raw: Raw) -> int:
    [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})["topics"]
    epoch: int = topic["partitions"][0]["leader_epoch"]
    return epoch


def listed(raw: Raw, time: int) -> tuple[int, int]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time}
    body: dict[str, Any] = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    [topic] = raw.ask(ApiKey.LIST_OFFSETS, body)["topics"]
    [found] = topic["partitions"]
    return found["offset"], found["leader_epoch"]


def test_over_restarts(tmp_path: Path, launch: Launcher) -> None:
    data = tmp_path / "data"
    with broker_process(data, launch=launch) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
        publish(broker, 3)
        broker.kill()
    with broker_process(data, launch=launch) as broker:
        publish(broker, 2)
        assert broker.stop() == 0
    with broker_process(data, launch=launch) as broker:  # nothing is written in this epoch
        assert broker.stop() == 0
    with broker_process(data, launch=launch) as broker, Raw(broker.kafka) as raw:
        assert told(raw) == 3
        publish(broker, 1)
        assert [end_of(raw, epoch) for epoch in range(4)] == [(0, 0, 3), (0, 1, 5), (0, 1, 5), (0, 3, 6)]
        assert end_of(raw, 4) == (0, -1, -1)
        assert end_of(raw, 0, current=2)[0] == Code.FENCED_LEADER_EPOCH
        assert end_of(raw, 0, current=4)[0] == Code.UNKNOWN_LEADER_EPOCH
        assert (listed(raw, EARLIEST), listed(raw, LATEST)) == ((0, 0), (6, 3))
        assert raw.fetch("t", 0, current_leader_epoch=2)["error_code"] == Code.FENCED_LEADER_EPOCH
        assert raw.fetch("t", 0, current_leader_epoch=3)["error_code"] == 0
        assert broker.stop() == 0


def test_a_consumer_goes_on_through_them(tmp_path: Path, launch: Launcher) -> None:
    """It asks where its epoch ended, and gets every event once."""
    data = tmp_path / "data"
    with broker_process(data, launch=launch, listen_kafka=free_address()) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
        publish(broker, 3)
        settings = {
            "bootstrap.servers": broker.kafka,
            "group.id": "g",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
        }
        consumer = Consumer(settings)
        found: list[bytes | None] = []

        def read(until: int) -> None:
            for _ in range(300):
                if len(found) == until:
                    return
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    found.append(message.value())
            raise AssertionError(f"{len(found)} events of {until} in 30 s")

        consumer.assign([TopicPartition("t", 0, 0)])
        read(3)
        broker.kill()
        for start in range(1, 3):
            broker.start()
            publish(broker, 2)
            read(3 + 2 * start)
            broker.kill()
        consumer.close()
    assert found == [b"0", b"1", b"2", b"0", b"1", b"0", b"1"]
