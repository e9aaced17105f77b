"""Quotas with Kafka's own tools and clients, unmodified."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from krappy.server import throttled
from krappy.testing.running import RunningBroker, run_broker
from tests.compat import tools
from tests.compat.clients.base import Acks, Message, Sending, by_partition
from tests.compat.conftest import GetClient
from tests.compat.kafka_tools import KafkaTools
from tests.process import wait_until
from tests.quotas.quotas import Quotas, throttled_seconds


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with run_broker(tmp_path_factory.mktemp("limited"), durability="os", listen_http="127.0.0.1:0") as found:
        yield found


@pytest.fixture
def kafka(broker: RunningBroker) -> KafkaTools:
    try:
        return KafkaTools(broker.kafka_address)
    except tools.Missing as missing:
        pytest.skip(str(missing))


def test_kafka_configs_sets_shows_and_deletes_quotas(kafka: KafkaTools) -> None:
    ada = ("--entity-type", "users", "--entity-name", "ada")
    etl = ("--entity-type", "clients", "--entity-name", "etl")
    anybody = ("--entity-type", "users", "--entity-default")
    ip = ("--entity-type", "ips", "--entity-name", "10.0.0.7")
    set_ones = [
        (ada, "producer_byte_rate=1024,consumer_byte_rate=2048", "Quota configs for user-principal 'ada' are"),
        ((*ada, *etl), "request_percentage=12.5", "Quota configs for user-principal 'ada', client-id 'etl' are"),
        (anybody, "controller_mutation_rate=0.5", "Quota configs for the default user-principal are"),
        (etl, "producer_byte_rate=7", "Quota configs for client-id 'etl' are"),
        (ip, "connection_creation_rate=5", "Quota configs for ip '10.0.0.7' are"),
    ]
    for who, quotas, _ in set_ones:
        assert "Completed updating" in kafka("configs", "--alter", *who, "--add-config", quotas)
    kinds = ("users", "clients", "ips")
    shown = "".join(kafka("configs", "--describe", "--entity-type", kind) for kind in kinds)
    shown += kafka("configs", "--describe", *ada, *etl)
    for _, quotas, told in set_ones:
        assert told in shown
        for each in quotas.split(","):
            name, _, value = each.partition("=")
            assert f"{name}={float(value)}" in shown
    kafka("configs", "--alter", *ada, "--delete-config", "producer_byte_rate,consumer_byte_rate")
    assert "Quota configs for user-principal 'ada' are" not in kafka("configs", "--describe", *ada)
    wrong = kafka("configs", "--alter", *ada, "--add-config", "producer_byte_rate=-1", fails=True)
    assert "must be greater than 0" in wrong


def test_a_producer_keeps_to_its_rate_and_its_metric_tells_the_throttling(
    broker: RunningBroker, kafka: KafkaTools
) -> None:
    """The rate is 400 KB a second. What the client has seen of throttling is what the broker has told."""
    before = throttled_seconds(broker)
    who = ("--entity-type", "clients", "--entity-name", "perf")
    kafka("configs", "--alter", *who, "--add-config", "producer_byte_rate=400000")
    said = kafka(
        *("producer-perf-test", "--topic", "perf", "--num-records", "4400", "--record-size", "1000"),
        *("--throughput", "-1", "--print-metrics"),
        *("--producer-props", "client.id=perf", f"bootstrap.servers={kafka.address}", "batch.size=20000"),
        "max.in.flight.requests.per.connection=1",
    )
    rates = [float(each) for each in re.findall(r"\d records sent, ([\d.]+) records/sec", said)][:-1]  # each is of 5 s
    assert 360 < max(rates) < 490  # one of them has the credit of a second

    def metric(name: str) -> float:
        """The value of the producer as a whole, which is the largest."""
        return max(float(each) for each in re.findall(rf"producer\S*metrics:{name}:\{{[^}}]*\}}\s*: ([\d.]+)", said))

    assert metric("produce-throttle-time-max") > 10
    requests = metric("record-send-total") / metric("records-per-request-avg")
    told = metric("produce-throttle-time-avg") / 1000 * requests
    assert told == pytest.approx(throttled_seconds(broker) - before, rel=0.1)


def test_a_consumer_keeps_to_its_rate(kafka: KafkaTools) -> None:
    load = ("--num-records", "4400", "--record-size", "1000", "--throughput", "-1")
    kafka(
        *("producer-perf-test", "--topic", "eaten", *load),
        *("--producer-props", f"bootstrap.servers={kafka.address}", "batch.size=20000"),
    )
    who = ("--entity-type", "clients", "--entity-name", "eater")
    kafka("configs", "--alter", *who, "--add-config", "consumer_byte_rate=400000")
    end = ("--from-beginning", "--max-messages", "4400", "--timeout-ms", "60000")
    own = ("--consumer-property", "client.id=eater", "--consumer-property", "fetch.max.bytes=100000")
    before = kafka("get-offsets", "--topic", "eaten")
    assert "eaten:0:4400" in before
    began = time.monotonic()
    kafka("console-consumer", "--topic", "eaten", *end, *own)
    assert 9 < time.monotonic() - began < 90


def test_topics_are_refused_beyond_their_rate(kafka: KafkaTools) -> None:
    """`kafka-topics.sh` does not try again by itself (KIP-599)."""
    who = ("--entity-type", "users", "--entity-default")
    kafka("configs", "--alter", *who, "--add-config", "controller_mutation_rate=1")
    kafka("topics", "--create", "--topic", "many", "--partitions", "100")
    assert "ThrottlingQuotaExceeded" in kafka("topics", "--create", "--topic", "more", fails=True)
    kafka("configs", "--alter", *who, "--delete-config", "controller_mutation_rate")
    kafka("topics", "--create", "--topic", "more")
    assert {"many", "more"} <= set(kafka("topics", "--list").split())


@pytest.mark.parametrize("acks", ["all", "0"])
@pytest.mark.parametrize("name", ["aiokafka", "kcat"])
def test_several_that_share_a_quota_lose_nothing(
    broker: RunningBroker, get_client: GetClient, monkeypatch: pytest.MonkeyPatch, name: str, acks: Acks
) -> None:
    """Four writers, and then a reader, use the connections that the broker silences; writes with an answer are refused,
    too."""
    monkeypatch.setattr(throttled, "HELD", 0.2)
    client, topic, kinds = get_client(name), f"shared-{name}-{acks}", ("producer_byte_rate", "consumer_byte_rate")
    written = {part: [Message(b"k", b"%d-" % n + b"x" * 1200, (), None, part) for n in range(50)] for part in range(4)}
    with broker.connect() as native, Quotas(broker.kafka_address) as quotas, ThreadPoolExecutor(4) as pool:
        native.create_topic(topic, partitions=4)
        quotas.set({"user": "ANONYMOUS"}, **dict.fromkeys(kinds, 100_000.0))
        before = {kind: throttled_seconds(broker, kind) for kind in kinds}
        list(pool.map(lambda some: client.produce(broker.kafka_address, topic, some, Sending(acks)), written.values()))
        wait_until(lambda: sum(native.offsets(topic).values()) == 200, "all is written")
        read = by_partition(client.consume(broker.kafka_address, topic, 200))
        assert {part: [each.value for each in read[part]] for part in read} == {
            part: [each.value for each in written[part]] for part in written
        }
        for kind in kinds:
            assert throttled_seconds(broker, kind) - before[kind] > 0.5
