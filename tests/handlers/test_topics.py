"""Topics and the broker itself, by native messages against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy import errors
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw, read_all, scan


def test_ping_says_who_answers(raw: Raw) -> None:
    pong = raw.call(m.Ping())
    assert len(pong.cluster) == 22
    assert pong.max_frame > 1 << 20


def test_a_topic_is_created_described_altered_and_deleted(raw: Raw) -> None:
    assert raw.call(m.CreateTopic("t", 2, {"retention.ms": 5000})).created
    with pytest.raises(errors.TopicExists):
        raw.call(m.CreateTopic("t"))
    assert not raw.call(m.CreateTopic("t", if_absent=True)).created
    raw.call(m.AlterTopic("t", {"retention.ms": None, "segment.bytes": 10_000}, partitions=3))
    (described,) = raw.call(m.DescribeTopics(["t"])).topics
    assert described["config"] == {"segment.bytes": "10000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    with pytest.raises(errors.InvalidPartitions):
        raw.call(m.AlterTopic("t", partitions=2))
    with pytest.raises(errors.InvalidConfig, match=r"retention\.ms"):
        raw.call(m.AlterTopic("t", {"retention.m": 1}))
    raw.call(m.DeleteTopic("t"))
    with pytest.raises(errors.UnknownTopic):
        raw.call(m.DescribeTopics(["t"]))
    assert raw.call(m.CreateTopic("t")).partitions == 1


def test_a_topic_whose_creator_gives_no_number_has_as_many_partitions_as_the_broker_says(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", default_partitions=4) as broker, broker.connect() as client:
        with Raw(broker.address) as raw:
            assert raw.call(m.CreateTopic("t")).partitions == 4
            assert raw.call(m.CreateTopic("placed", replication_factor=1)).partitions == 4
        client.create_topic("u")
        client.create_topic("one", 1)
        assert {found.name: len(found.partitions) for found in client.topics()} == {
            "t": 4,
            "placed": 4,
            "u": 4,
            "one": 1,
        }


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250])
def test_a_topic_with_an_impossible_name_is_refused(raw: Raw, name: str) -> None:
    with pytest.raises(errors.InvalidTopic):
        raw.call(m.CreateTopic(name))


def test_deleting_a_topic_ends_what_waits_on_it(broker: RunningBroker, raw: Raw) -> None:
    producer = raw.producer("t")
    consumer = raw.call(m.ConsumerRegistration(["t"]))
    waiting = raw.send(m.Poll(consumer.handle, max_wait=20_000))
    watch = raw.send(m.Watch("t"))
    assert raw.receive(watch).event == "end_of_snapshot"
    with Raw(broker.address) as other:
        other.call(m.DeleteTopic("t"))
    for id in (waiting, watch):
        with pytest.raises(errors.UnknownTopic):
            raw.receive(id)
    with pytest.raises(errors.UnknownTopic):
        raw.call(m.Message(producer.handle, b"v"))


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        raw.call(m.CreateTopic("t", 2, {"cleanup.policy": "compact"}))
        handle = raw.producer("t").handle
        for n in range(200):
            raw.call(m.Message(handle, b"%d" % n, b"k%d" % (n % 20)))
        log, table = read_all(raw, "t"), scan(raw, topic="t")
        (described,) = raw.call(m.DescribeTopics(["t"])).topics
    with run_broker(tmp_path / "data") as broker, Raw(broker.address) as raw:
        assert read_all(raw, "t") == log
        assert scan(raw, topic="t") == table
        assert raw.call(m.DescribeTopics(["t"])).topics == [described]


def test_metadata_tells_of_the_broker_and_of_who_leads_a_topic(broker: RunningBroker, raw: Raw) -> None:
    raw.call(m.CreateTopic("t", 2))
    raw.call(m.CreateTopic("u"))
    found = raw.call(m.Metadata(["t", "absent"]))
    [own] = found.brokers
    assert (own["id"], own["native"], own["rack"]) == (found.broker, broker.address, None)
    assert own["kafka"] == {"PLAINTEXT": broker.kafka_address}
    assert found.controller == found.broker
    assert found.cluster == raw.call(m.Ping()).cluster
    [topic, absent] = found.topics
    assert (topic["name"], topic["scattered"], len(topic["id"])) == ("t", False, 22)
    led = {"leader": own["id"], "leader_epoch": 0, "replicas": [own["id"]], "isr": [own["id"]]}
    assert topic["partitions"] == [led, led]
    assert absent == {"name": "absent", "id": None, "scattered": False, "partitions": []}
    assert [each["name"] for each in raw.call(m.Metadata()).topics] == ["t", "u"]


def test_pong_tells_how_many_brokers_there_are(raw: Raw) -> None:
    assert raw.call(m.Ping()).brokers == 1


def test_the_address_that_is_advertised_is_told(tmp_path: Path) -> None:
    with (
        run_broker(tmp_path, durability="os", advertised_listeners="NATIVE://krappy.example:17092") as broker,
        Raw(broker.address) as raw,
    ):
        [own] = raw.call(m.Metadata([])).brokers
        assert own["native"] == "krappy.example:17092"
