"""The listener's life: what it advertises, idle connections, too many connections, stopping, and what a
restart keeps."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin as ck_admin
import pytest

from krappy.errors import ConfigError
from krappy.records import batch
from krappy.settings.server import load
from krappy.testing.running import run_broker
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Closed, Raw, fetch, produce
from tests.process import Launcher, broker_process


def nodes(raw: Raw) -> list[dict[str, object]]:
    return list(raw.ask(ApiKey.METADATA, {"topics": []})["brokers"])


def test_it_tells_clients_where_they_reached_it(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os") as broker, Raw(broker.kafka_address) as raw:
        (node,) = nodes(raw)
        assert f"{node['host']}:{node['port']}" == broker.kafka_address
        assert (node["node_id"], node["rack"]) == (0, None)


def test_or_what_it_is_told_to_tell(tmp_path: Path) -> None:
    told = {"advertised_listeners": "PLAINTEXT://broker.example:19092", "broker_id": 7, "rack": "r1"}
    with run_broker(tmp_path, durability="os", **told) as broker, Raw(broker.kafka_address) as raw:
        assert nodes(raw) == [{"node_id": 7, "host": "broker.example", "port": 19092, "rack": "r1"}]
        answer = raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})
        (partition,) = answer["topics"][0]["partitions"]
        assert answer["controller_id"] == partition["leader_id"] == 7
        assert partition["replica_nodes"] == partition["isr_nodes"] == [7]
        (found,) = raw.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": ["g"]})["coordinators"]
        assert (found["node_id"], found["host"], found["port"]) == (7, "broker.example", 19092)


def test_each_listener_tells_its_own(tmp_path: Path) -> None:
    """As clients inside and outside of a cluster need it. A listener without an advertised address tells where it was
    reached."""
    listen = "IN://127.0.0.1:0, out://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    told = "IN://krappy-0.krappy:9092,OUT://krappy.example.com:31094"
    with run_broker(tmp_path, listen_kafka=listen, advertised_listeners=told, durability="os") as broker:
        assert list(broker.kafka_addresses) == ["IN", "OUT", "PLAINTEXT"]
        found = {}
        for name, address in broker.kafka_addresses.items():
            with Raw(address) as raw:
                (node,) = nodes(raw)
                found[name] = f"{node['host']}:{node['port']}"
                (coordinator,) = raw.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": ["g"]})["coordinators"]
                assert f"{coordinator['host']}:{coordinator['port']}" == found[name]
        assert found == {
            "IN": "krappy-0.krappy:9092",
            "OUT": "krappy.example.com:31094",
            "PLAINTEXT": broker.kafka_addresses["PLAINTEXT"],
        }


def test_clients_work_through_each_of_them(tmp_path: Path) -> None:
    """librdkafka connects to the address that it is told, so each client goes on through the listener that it began
    with.

    An address of this process's own (127.0.0.0/8) has no port that another program was given.
    """
    host = f"127.{64 + (os.getpid() >> 16)}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    addresses = {"INTERNAL": f"{host}:19092", "EXTERNAL": f"{host}:19094"}
    listen = told = ",".join(f"{name}://{address}" for name, address in addresses.items())
    settings: dict[str, Any] = {"durability": "os", "group_initial_rebalance_delay_ms": 0}
    with run_broker(tmp_path, listen_kafka=listen, advertised_listeners=told, **settings) as broker:
        for number, address in enumerate(addresses.values()):
            client = {"bootstrap.servers": address}
            producer = ck.Producer(client)
            producer.produce("t", b"%d" % number)
            assert producer.flush(60) == 0
            known = {f"{each.host}:{each.port}" for each in producer.list_topics("t", timeout=60).brokers.values()}
            assert known == {address}
            consumer = ck.Consumer({**client, "group.id": f"g{number}", "auto.offset.reset": "earliest"})
            consumer.subscribe(["t"])
            found: list[bytes] = []
            while len(found) <= number:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None, message.error()
                found.append(bytes(message.value() or b""))
            consumer.close()
            assert found == [b"%d" % each for each in range(number + 1)]
        admin = ck_admin.AdminClient({"bootstrap.servers": broker.kafka_address})
        resource = ck_admin.ConfigResource(ck_admin.ConfigResource.Type.BROKER, "0")
        settings = admin.describe_configs([resource])[resource].result(60)
        assert settings["listeners"].value == listen
        assert settings["advertised.listeners"].value == told
        assert settings["listener.security.protocol.map"].value == "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT"


@pytest.mark.parametrize(
    ("listen", "told", "why"),
    [
        ("127.0.0.1:0,127.0.0.1:0", "", "a name of its own for each"),
        ("A://127.0.0.1:0", "B://x:1", "tells of B, and the listeners of listen_kafka are A"),
        ("A://127.0.0.1:0", "x:1", "tells of PLAINTEXT"),
        ("A://127.0.0.1", "", "HOST:PORT is needed"),
        ("A://127.0.0.1:0,", "", "HOST:PORT is needed"),
        ("A://127.0.0.1:0", "A://0.0.0.0:1", "can't connect"),
    ],
)
def test_listeners_that_can_t_be(listen: str, told: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load({"listen_kafka": listen, "advertised_listeners": told}, {})


def test_it_need_not_be_served(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", listen_kafka="none") as broker:
        assert broker.kafka_address == ""
        assert broker.address


def test_the_file_may_name_settings_as_kafka_does(tmp_path: Path) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text(
        """
        listeners = "PLAINTEXT://127.0.0.1:19092"
        advertised.listeners = "PLAINTEXT://broker.example:9093"
        broker.id = 3
        broker.rack = "a"
        auto.create.topics.enable = false
        num.partitions = 5
        "group.initial.rebalance.delay.ms" = 0
        """
    )
    config = load({}, {}, file)
    assert (config.listen_kafka, config.advertised_listeners) == ("127.0.0.1:19092", "broker.example:9093")
    assert (config.broker_id, config.rack, config.auto_create_topics) == (3, "a", False)
    assert (config.default_partitions, config.group_initial_rebalance_delay_ms) == (5, 0)


@pytest.mark.parametrize(
    "text", ["broker_id = 1\nbroker.id = 1\n", "broker.idd = 1\n", 'advertised.listeners = "0.0.0.0:9092"\n']
)
def test_settings_that_can_t_be(tmp_path: Path, text: str) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load({}, {}, file)


def test_a_topic_is_not_created_where_the_broker_does_not_allow_it(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", auto_create_topics=False) as broker, Raw(broker.kafka_address) as raw:
        (topic,) = raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})["topics"]
        assert topic["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_silent_connection_is_closed_but_not_one_that_waits_for_its_answer(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", idle_timeout_ms=1500) as broker, Raw(broker.kafka_address) as raw:
        raw.make("t")
        answer = raw.ask(ApiKey.FETCH, fetch([("t", 0, 0)], max_wait_ms=2500), 12)
        assert answer["error_code"] == 0
        assert raw.closed()


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os", max_connections=1) as broker, Raw(broker.kafka_address) as one:
        nodes(one)
        with Raw(broker.kafka_address) as two:
            assert two.closed()
        assert nodes(one)


def test_what_is_in_work_is_answered_before_it_stops(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="fsync") as broker:
        raw, polling = Raw(broker.kafka_address), Raw(broker.kafka_address)
        raw.make("t")
        polling.send(ApiKey.FETCH, fetch([("t", 0, 100)]), 12)
        polling.receive()
        records = batch.encode(None, [b"x"], timestamps=1)
        for _ in range(50):
            raw.send(ApiKey.PRODUCE, produce("t", records), 9)
        assert raw.receive()["responses"][0]["partition_responses"][0]["error_code"] == 0
        answered = 1
        polling.send(ApiKey.FETCH, fetch([("t", 0, 50)], max_wait_ms=60_000), 12)
        found: list[dict[str, object]] = []
        waiting = threading.Thread(target=lambda: found.append(polling.receive()))
        waiting.start()
        while answered < 50:
            raw.receive()
            answered += 1
    waiting.join()
    assert found, "the long poll was not answered"
    assert raw.closed()
    with pytest.raises(Closed):
        polling.receive_frame()
    raw.close()
    polling.close()


def test_a_restart_keeps_cluster_topics_and_events(tmp_path: Path, launcher: Launcher) -> None:
    with broker_process(tmp_path / "data", launch=launcher) as broker:
        with Raw(broker.kafka) as raw:
            uuid = raw.make("kept")
            cluster = raw.ask(ApiKey.METADATA, {"topics": []})["cluster_id"]
            producer = raw.new_producer_id()
            once = batch.encode(None, [b"x"], timestamps=1, producer_id=producer, producer_epoch=0, base_sequence=0)
            assert raw.produce("kept", once)["base_offset"] == 0
        broker.kill()
        broker.start()
        with Raw(broker.kafka) as raw:
            assert raw.topic_id("kept") == uuid
            assert raw.ask(ApiKey.METADATA, {"topics": []})["cluster_id"] == cluster
            assert raw.produce("kept", once)["base_offset"] == 0
            assert raw.values("kept") == [b"x"]
